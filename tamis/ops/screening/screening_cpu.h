#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/screening_index_kernel.h"

namespace tamis::ops {

/// How a call uses bounds, and where it counts what they spared (null: it does not).
struct Bounds {
  kernels::Skipping skipping = kernels::Skipping::kAdaptive;
  kernels::SkippedWork* skipped = nullptr;
};

/// The fused forms of ops::screening and its backward on the CPU, for float32, bfloat16 and float64, after the checks.
/// No bit depends on `bounds`.
at::Tensor screening_cpu(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                         const at::Tensor& s_w_H, const at::Tensor& s_r_H, const ScreeningOptions& options,
                         const Bounds& bounds = {});

/// Gradients of q, k, v, s_w, s_r and gate (empty without a gate).
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> screening_backward_cpu(
    const at::Tensor& grad_BTHV, const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
    const at::Tensor& s_w_H, const at::Tensor& s_r_H, const ScreeningOptions& options, const Bounds& bounds = {});

}  // namespace tamis::ops
