#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tamis/ops/screening/screening.h"

namespace tamis::ops {

/// The layout of the projections of all heads in one tensor [B, T, 2 H K + H V], or 2 H V with a gate: the product of
/// the input with the rows of W_Q, W_K, W_V (and W_G).
struct ProjectionLayout {
  int64_t heads, key_dim, value_dim;
  bool gate = true;
};

/// Views into projected_BTW. Throws c10::ValueError when its shape is not the layout's.
ScreeningProjections split_projections(const at::Tensor& projected_BTW, const ProjectionLayout& layout);

/// The weights of one layer.
struct ScreeningWeights {
  at::Tensor projection;  // [2 H K + 2 H V, D] or, without a gate, H V rows less: W_Q, W_K, W_V, W_G
  at::Tensor output;      // [E, H V]: W_O, its columns multiplied by exp(s_O) if the model has s_O
  at::Tensor s_w;         // [H]
  at::Tensor s_r;         // [H]
};

/// What a layer keeps for the backward pass.
enum class Keep {
  kInputAndProjections,
  kInput,  // projections are computed again: a quarter more time for products (K 16, V 64), W / (D + W) less memory
};

/// All heads of a layer, Eq. (2) and (15)-(18): W_O u with u = screening() of the parts of W_P x, T_q = T_k. Output and
/// gradients have the bits of ops::linear and screening() one after the other, whatever is kept, except for the
/// gradient of W_O: u is not kept but computed again by the backward pass of screening, equal up to rounding.
///
/// x        [B, T, D], dtype and device of the matrices; s_w and s_r as for screening()
/// options  as for screening(); the gate is the layout's, options.gate is not used
/// returns  [B, T, E]
/// Gradient  of x and of all weights, first derivative only.
/// Memory    as screening(), and what is kept.  Time as two products and screening().
/// Throws    c10::ValueError when shapes, dtypes or devices disagree; the text names the argument and both values.
at::Tensor screening_layer(const at::Tensor& x_BTD, const ScreeningWeights& weights, const ProjectionLayout& layout,
                           const ScreeningOptions& options = {}, Keep keep = Keep::kInputAndProjections);

}  // namespace tamis::ops
