#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <utility>

#include "tamis/ops/screening/screening.h"

namespace tamis::ops {

/// Whether the CPU has fused forms for this dtype.
bool screening_has_fused(at::ScalarType dtype);

/// The fused forms of ops::screening and its backward pass on the CPU, for float32, bfloat16 and float64, after the
/// checks.
at::Tensor screening_cpu(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                         const at::Tensor& s_w_H, const at::Tensor& s_r_H, const ScreeningOptions& options);

/// As screening_backward_into, under its conditions.
std::pair<at::Tensor, at::Tensor> screening_backward_cpu(const at::Tensor& grad_BTHV, const at::Tensor& q_BTHK,
                                                         const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                                                         const at::Tensor& s_w_H, const at::Tensor& s_r_H,
                                                         const ScreeningOptions& options,
                                                         const ScreeningProjections& gradients,
                                                         const at::Tensor& result_BTHV = {});

/// New tensors for the gradients of these inputs.
ScreeningProjections empty_gradients(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                                     const std::optional<at::Tensor>& gate_BTHV);

}  // namespace tamis::ops
