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

/// The weights of the tiles of one layer.
struct TileWeights {
  at::Tensor projection;  // [2 H K + 2 H V, D], or without the gate's H V rows: W_Q, W_K, W_V, W_G as one GEMM
  at::Tensor output;      // [E, H V]: W_O, with exp(s_O) folded into its columns where a model has that
  at::Tensor s_w;         // [H]
  at::Tensor s_r;         // [H]
};

/// What a layer's tiles keep for the backward pass.
enum class Keep {
  kInputAndProjections,
  kInput,  // the projections are made again: a quarter more time for products (K 16, V 64), W / (D + W) less memory
};

/// What all tiles of a layer give together, Eq. (2) and (15)-(18): W_O u, u = screening() of the parts of W_P x, T_q =
/// T_k. Output and gradients have the bits of ops::linear and screening() one after the other, whatever is kept, but
/// for the gradient of W_O: u is never kept, the backward pass of screening makes it again, up to rounding.
///
/// x        [B, T, D], dtype and device of the matrices; s_w and s_r as for screening()
/// options  as for screening(); the gate is the layout's, options.gate is not used
/// returns  [B, T, E]
/// Gradient  of x and of all weights, first derivative only.
/// Memory    as screening(), and what is kept.  Time as two products and screening().
/// Throws    c10::ValueError when shapes, dtypes or devices disagree; the text names the argument and both values.
at::Tensor screening_tiles(const at::Tensor& x_BTD, const TileWeights& weights, const ProjectionLayout& layout,
                           const ScreeningOptions& options = {}, Keep keep = Keep::kInputAndProjections);

}  // namespace tamis::ops
