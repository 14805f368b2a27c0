#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <utility>

#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/screening_index_kernel.h"

namespace tamis::ops {

/// For tests and measurements: when a call uses exact skipping, and where it counts its work (null: nowhere).
struct SkippingControl {
  kernels::Skipping skipping = kernels::Skipping::kAdaptive;
  kernels::PassCounts* counts = nullptr;
};

/// Whether the CPU has fused forms for this dtype.
bool screening_has_fused(at::ScalarType dtype);

/// The fused forms of ops::screening and its backward pass on the CPU, for float32, bfloat16 and float64, after the
/// checks. No bit depends on `control`.
at::Tensor screening_cpu(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                         const at::Tensor& s_w_H, const at::Tensor& s_r_H, const ScreeningOptions& options,
                         const SkippingControl& control = {});

/// As screening_backward_into, under its conditions.
std::pair<at::Tensor, at::Tensor> screening_backward_cpu(
    const at::Tensor& grad_BTHV, const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
    const at::Tensor& s_w_H, const at::Tensor& s_r_H, const ScreeningOptions& options,
    const ScreeningProjections& gradients, const at::Tensor& result_BTHV = {}, const SkippingControl& control = {});

/// New tensors for the gradients of these inputs.
ScreeningProjections empty_gradients(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                                     const std::optional<at::Tensor>& gate_BTHV);

}  // namespace tamis::ops
