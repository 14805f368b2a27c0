#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace tamis::nn {

using TensorFunction = std::function<at::Tensor(const std::vector<at::Tensor>& inputs)>;

/// function(inputs) whose activations are not kept: the backward pass runs the function again from its inputs, so
/// memory falls to the inputs and time grows by one forward pass. Gradients have the same bits as without.
///
/// function  depends on `inputs` only (other tensors that it captures get no gradient), and is deterministic
at::Tensor recompute(const TensorFunction& function, const std::vector<at::Tensor>& inputs);

}  // namespace tamis::nn
