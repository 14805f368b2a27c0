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

/// Views into projected_BTW. Throws c10::ValueError when its shape is not the layout's.
ScreeningProjections split_projections(const at::Tensor& projected_BTW, const ProjectionLayout& layout);

/// screening() of split_projections(projected_BTW, layout), bit for bit, T_q = T_k; options.gate is not used. The
/// gradient of the projections comes in one tensor, written in place: nothing is put together afterwards. Returns [B,
/// T, H, V]. Gradient, memory, time and errors as screening().
at::Tensor projected_screening(const at::Tensor& projected_BTW, const ProjectionLayout& layout, const at::Tensor& s_w_H,
                               const at::Tensor& s_r_H, const ScreeningOptions& options = {});

}  // namespace tamis::ops
