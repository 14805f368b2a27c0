#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "tamis/ops/screening/screening.h"

namespace tamis::ops {

/// The blocked forms of ops::screening and its backward pass: plain torch on any device, O(T) memory (README.md, "On
/// other devices"). Half-precision storage computes in float32. Arguments are checked already. s_w and s_r are read
/// from the device, once a call.
at::Tensor screening_blocked(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& s_w,
                             const at::Tensor& s_r, const ScreeningOptions& options);

/// Gradients of q, k, v, s_w, s_r and gate; the last is not defined without a gate.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> screening_backward_blocked(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& s_w,
    const at::Tensor& s_r, const ScreeningOptions& options);

}  // namespace tamis::ops
