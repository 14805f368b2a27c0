#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tamis/ops/screening/screening.h"

namespace tamis::ops {

/// How the projections of all heads lie side by side in one tensor [B, T, 2 H K + H V], or 2 H V with a gate: what one
/// GEMM with the rows of W_Q, W_K, W_V (and W_G) makes of the input.
struct ProjectionLayout {
  int64_t heads, key_dim, value_dim;
  bool gate = true;
};

/// Views into projected_BTW.
ScreeningProjections split_projections(const at::Tensor& projected_BTW, const ProjectionLayout& layout);

/// screening() of split_projections(projected_BTW, layout), bit for bit; options.gate is not used. Its gradient comes
/// in one tensor like projected_BTW, written in place: nothing has to be put together afterwards, which costs 4% of a
/// training step. Returns [B, T, H, V].
at::Tensor projected_screening(const at::Tensor& projected_BTW, const ProjectionLayout& layout, const at::Tensor& s_w_H,
                               const at::Tensor& s_r_H, const ScreeningOptions& options = {});

}  // namespace tamis::ops
