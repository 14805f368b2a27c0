#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <tuple>

#include "tamis/ops/mlstm/mlstm.h"
#include "tamis/ops/mlstm/mlstm_cpu.h"

namespace tamis::ops {

/// The blocked forms: plain torch on any device, O(T) memory (README.md, "On other devices"). Half-precision storage
/// computes in float32. Arguments are checked already.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> mlstm_blocked(const at::Tensor& q, const at::Tensor& k,
                                                                         const at::Tensor& v, const at::Tensor& i,
                                                                         const at::Tensor& f,
                                                                         const MlstmOptions& options);

/// Gradients of q, k, v, i, f and of C, n, m of the given state (empty without one).
std::array<at::Tensor, 8> mlstm_backward_blocked(const MlstmOutputGradients& grad, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v, const at::Tensor& i,
                                                 const at::Tensor& f, const MlstmOptions& options);

}  // namespace tamis::ops
