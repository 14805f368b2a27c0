#include "tamis/train/weight_shards.h"

#include <ATen/ATen.h>

#include <string>
#include <unordered_map>

#include "tamis/nn/safetensors_set.h"

namespace tamis::train {

std::vector<at::Tensor> shapes_of(const models::Model& model) {
  std::vector<at::Tensor> shapes;
  for (const auto& [name, tensor] : model.parameters()) {
    shapes.push_back(at::empty(tensor.sizes(), tensor.options().device(at::kMeta)));
  }
  return shapes;
}

WeightShards cut_weights(const models::Model& model, int64_t processes) {
  const std::vector<nn::NamedTensor> tensors = model.checkpoint_tensors(shapes_of(model));
  int64_t total = 0, before = 0;
  for (const nn::NamedTensor& named : tensors) total += static_cast<int64_t>(named.tensor.nbytes());
  WeightShards shards;
  int64_t last = -1;
  for (const nn::NamedTensor& named : tensors) {
    const int64_t part = before * processes / total;
    if (part != last) shards.emplace_back();
    last = part;
    shards.back().push_back(named);
    before += static_cast<int64_t>(named.tensor.nbytes());
  }
  return shards;
}

std::vector<nn::NamedTensor> copy_weights(const models::Model& model, GradientExchange& exchange,
                                          const std::vector<nn::NamedTensor>& shard) {
  std::unordered_map<std::string, size_t> place;
  for (size_t i = 0; i < shard.size(); ++i) place.emplace(shard[i].name, i);
  std::vector<nn::NamedTensor> copies(shard.size());
  const std::vector<models::Parameter> parameters = model.parameters();
  const std::vector<at::Tensor> shapes = shapes_of(model);
  exchange.for_each_unit([&](const std::vector<size_t>& whole) {
    std::vector<at::Tensor> tensors = shapes;
    for (const size_t p : whole) tensors[p] = parameters[p].tensor.detach();
    for (const auto& [name, tensor] : model.checkpoint_tensors(tensors)) {
      const auto found = place.find(name);
      if (found == place.end() || tensor.is_meta()) continue;
      copies[found->second] = {name, at::empty(tensor.sizes(), tensor.options().device(at::kCPU)).copy_(tensor)};
    }
  });
  return copies;
}

void write_weight_index(const std::filesystem::path& directory, const WeightShards& shards) {
  std::vector<std::vector<std::string>> names(shards.size());
  int64_t total = 0;
  for (size_t s = 0; s < shards.size(); ++s) {
    for (const auto& [name, tensor] : shards[s]) {
      names[s].push_back(name);
      total += static_cast<int64_t>(tensor.nbytes());
    }
  }
  nn::write_tensor_index(directory, names, total);
}

}  // namespace tamis::train
