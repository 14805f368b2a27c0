#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

#include "tamis/ops/mlstm/mlstm.h"
#include "tamis/ops/mlstm/mlstm_kernel.h"

namespace tamis::ops {

inline constexpr double kMlstmEpsilon = kernels::kMlstmEpsilon;
inline constexpr double kLargestNegativeM = kernels::kLargestNegativeM;

/// The fused forms: float32, and bfloat16 as storage. Arguments are checked already.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> mlstm_cpu(const at::Tensor& q, const at::Tensor& k,
                                                                     const at::Tensor& v, const at::Tensor& i,
                                                                     const at::Tensor& f, const MlstmOptions& options);

/// Gradients of what mlstm returns; those that are not given are zero.
struct MlstmOutputGradients {
  std::optional<at::Tensor> h, C, n, m;
};

/// Gradients of q, k, v, i, f and of C, n, m of the given state (empty without one).
std::array<at::Tensor, 8> mlstm_backward_cpu(const MlstmOutputGradients& grad, const at::Tensor& q, const at::Tensor& k,
                                             const at::Tensor& v, const at::Tensor& i, const at::Tensor& f,
                                             const MlstmOptions& options);

}  // namespace tamis::ops
