#include "tamis/models/registry.h"

#include <algorithm>
#include <array>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/models/multiscreen.h"
#include "tamis/models/stack.h"

namespace tamis::models {
namespace {

const std::array kArchitectures = {
    Architecture{"multiscreen", complete_multiscreen, make_multiscreen},
    Architecture{"swax", complete_stack, make_stack},
    Architecture{"transformer", complete_stack, make_stack},
};

}  // namespace

const Architecture& find_architecture(const nlohmann::json& config) {
  if (!config.is_object()) fail(ExitCode::kUsage, "model: expected a table of keys, but got {}", shown(config));
  const nlohmann::json type = config.value("model_type", nlohmann::json("multiscreen"));
  if (!type.is_string()) fail(ExitCode::kUsage, "model: \"model_type\" must be a name, but is {}", shown(type));
  for (const Architecture& architecture : kArchitectures) {
    if (architecture.name == type) return architecture;
  }
  throw Error(ExitCode::kUsage, unknown_name("model_type", type.get<std::string>(), known_models()));
}

std::span<const std::string> known_models() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Architecture& architecture : kArchitectures) result.push_back(architecture.name);
    return result;
  }();
  return names;
}

nlohmann::json complete_config(const nlohmann::json& config) {
  return find_architecture(config).complete(config);
}

ParameterCount count_parameters(const nlohmann::json& complete_config) {
  const auto model =
      find_architecture(complete_config).make(complete_config, {.seed = std::nullopt, .device = at::kMeta});
  ParameterCount count;
  for (const Parameter& parameter : model->parameters()) count.total += parameter.tensor.numel();
  count.without_embedding = count.total - model->vocab_size() * model->hidden_size();
  return count;
}

std::unique_ptr<Model> make_model(const nlohmann::json& complete_config, uint64_t seed) {
  return find_architecture(complete_config).make(complete_config, {.seed = seed});
}

}  // namespace tamis::models
