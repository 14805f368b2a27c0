#pragma once

#include <ATen/core/Tensor.h>

#include <utility>

#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/screening_index_kernel.h"

// The fused forms of screening_cpu.h for tests and measurements of exact skipping.

namespace tamis::ops {

/// When a call uses exact skipping, and where it counts its work (null: nowhere).
struct SkippingControl {
  kernels::Skipping skipping = kernels::Skipping::kAdaptive;
  kernels::PassCounts* counts = nullptr;
};

/// As in screening_cpu.h. No bit depends on `control`.
at::Tensor screening_cpu(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                         const at::Tensor& s_w_H, const at::Tensor& s_r_H, const ScreeningOptions& options,
                         const SkippingControl& control);

std::pair<at::Tensor, at::Tensor> screening_backward_cpu(const at::Tensor& grad_BTHV, const at::Tensor& q_BTHK,
                                                         const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                                                         const at::Tensor& s_w_H, const at::Tensor& s_r_H,
                                                         const ScreeningOptions& options,
                                                         const ScreeningProjections& gradients,
                                                         const at::Tensor& result_BTHV, const SkippingControl& control);

}  // namespace tamis::ops
