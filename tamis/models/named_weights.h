#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "tamis/models/mixer.h"

// A mixer's weights are a struct with a name for each tensor and a static `visit(weights, visitor)` that calls
// visitor(name, tensor) for each in a fixed order. Undefined tensors stand for weights that a configuration lacks.

namespace tamis::models {

template <typename Weights>
std::vector<LayerParameter> parameters_of(const Weights& weights) {
  std::vector<LayerParameter> result;
  Weights::visit(weights, [&](const char* name, const at::Tensor& tensor) {
    if (tensor.defined()) result.push_back({name, tensor});
  });
  return result;
}

/// `tensors`, in the order of parameters_of(like), under their names.
template <typename Weights>
Weights named(const Weights& like, const std::vector<at::Tensor>& tensors) {
  Weights result = like;
  auto next = tensors.begin();
  Weights::visit(result, [&](const char*, at::Tensor& tensor) {
    if (tensor.defined()) tensor = *next++;
  });
  return result;
}

}  // namespace tamis::models
