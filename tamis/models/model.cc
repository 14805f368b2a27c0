#include "tamis/models/model.h"

#include "tamis/models/model_config.h"
#include "tamis/models/pattern_model.h"

namespace tamis::models {

std::unique_ptr<Model> make_model(const nlohmann::json& complete_config, const Start& start) {
  return std::make_unique<PatternModel>(read_model_config(complete_config), start);
}

std::unique_ptr<Model> make_model(const nlohmann::json& complete_config, uint64_t seed) {
  return make_model(complete_config, Start{.seed = seed});
}

void move_to(const Model& model, at::Device device) {
  for (const Parameter& parameter : model.parameters()) parameter.tensor.set_data(parameter.tensor.detach().to(device));
  for (const at::Tensor& buffer : model.buffers()) buffer.set_data(buffer.to(device));
}

ParameterCount count_parameters(const nlohmann::json& complete_config) {
  const auto model = make_model(complete_config, Start{.seed = std::nullopt, .device = at::kMeta});
  ParameterCount count;
  for (const Parameter& parameter : model->parameters()) count.total += parameter.tensor.numel();
  count.without_embedding = count.total - model->vocab_size() * model->hidden_size();
  return count;
}

std::vector<ContextTraffic> Model::context_traffic(int64_t, int64_t, int64_t, at::ScalarType) const {
  return {};
}

}  // namespace tamis::models
