#include "tamis/models/stored_tensors.h"

#include <ATen/ATen.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "tamis/models/model_config.h"

namespace tamis::models {

StoredTensors::StoredTensors(const std::filesystem::path& path, const nlohmann::json& complete_config) : file_(path) {
  const ModelConfig config = read_model_config(complete_config);
  const std::vector<std::pair<const char*, int64_t>> parts = {{"q_proj.weight", config.key_width()},
                                                              {"k_proj.weight", config.key_width()},
                                                              {"v_proj.weight", config.value_width()},
                                                              {"g_proj.weight", config.value_width()}};
  for (const std::string& name : file_.names()) split(name, parts);
}

/// A tensor under its own name, or the parts of one that an earlier version stored whole.
void StoredTensors::split(const std::string& stored, const std::vector<std::pair<const char*, int64_t>>& parts) {
  constexpr std::string_view kWhole = "qkvg_proj.weight";
  const int64_t rows = std::accumulate(parts.begin(), parts.end(), int64_t{0},
                                       [](int64_t sum, auto& part) { return sum + part.second; });
  if (!stored.ends_with(kWhole) || file_.shape(stored).size() != 2 || file_.shape(stored)[0] != rows) {
    names_.push_back(stored);
    return;
  }
  const std::string prefix = stored.substr(0, stored.size() - kWhole.size());
  int64_t first = 0;
  for (const auto& [name, count] : parts) {
    names_.push_back(prefix + name);
    parts_[names_.back()] = {stored, first, count};
    first += count;
  }
}

bool StoredTensors::contains(const std::string& name) const {
  return parts_.contains(name) || file_.contains(name);
}

std::vector<int64_t> StoredTensors::shape(const std::string& name) const {
  const auto part = parts_.find(name);
  if (part == parts_.end()) return file_.shape(name).vec();
  return {part->second.count, file_.shape(part->second.stored)[1]};
}

at::ScalarType StoredTensors::dtype(const std::string& name) const {
  const auto part = parts_.find(name);
  return file_.dtype(part == parts_.end() ? name : part->second.stored);
}

at::Tensor StoredTensors::tensor(const std::string& name) const {
  const auto part = parts_.find(name);
  if (part == parts_.end()) return file_.tensor(name);
  return file_.tensor(part->second.stored).narrow(0, part->second.first, part->second.count);
}

}  // namespace tamis::models
