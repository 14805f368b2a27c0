#include "tamis/models/mixer.h"

#include <ATen/ATen.h>

#include <cmath>

#include "tamis/distributed/context_group.h"
#include "tamis/nn/initialise.h"

namespace tamis::models {

void Initialiser::inner(const at::Tensor& matrix) {
  normal(matrix, std::sqrt(2 / (5 * static_cast<double>(config_.hidden_size))));
}

void Initialiser::residual(const at::Tensor& matrix) {
  const auto layers = static_cast<double>(config_.num_hidden_layers);
  normal(matrix, 2 / (layers * std::sqrt(static_cast<double>(config_.hidden_size))));
}

void Initialiser::normal(const at::Tensor& matrix, double deviation) {
  nn::fill_normal(matrix, deviation, seed_, stream_++);
}

void Initialiser::unit(const at::Tensor& matrix, double deviation) {
  normal(matrix, unit_deviation_ > 0 ? unit_deviation_ : deviation);
}

at::Tensor rows_by_head(const std::vector<at::Tensor>& parts, int64_t heads) {
  std::vector<at::Tensor> by_head;
  for (const at::Tensor& part : parts) by_head.push_back(part.unflatten(0, {heads, -1}));
  return at::cat(by_head, 1).flatten(0, 1);
}

std::vector<at::Tensor> Mixer::weights(at::ScalarType dtype) const {
  std::vector<at::Tensor> result;
  for (const LayerParameter& own : parameters()) {
    result.push_back(own.tensor.dim() > 1 ? own.tensor.to(dtype) : own.tensor);
  }
  return result;
}

RelevanceMap Mixer::relevance(const at::Tensor& x_1TD, const MixerCall& call) const {
  RelevanceMap map;
  map.relevance = relevance_map(value_path(x_1TD, call));
  map.window = windows();
  return map;
}

ContextTraffic context_traffic(const std::vector<int64_t>& halos, int64_t row_bytes, int64_t tokens, int64_t rank,
                               int64_t size) {
  using distributed::ContextGroup;
  return {.forward = ContextGroup::rows_sent(halos, rank, size, tokens) * row_bytes,
          .backward = ContextGroup::rows_received(halos, rank, tokens) * row_bytes};
}

}  // namespace tamis::models
