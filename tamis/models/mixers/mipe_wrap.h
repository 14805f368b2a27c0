#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace tamis::models {

/// MiPE as in multiscreen-pytorch: a position i >= boundary counts as i mod w.
struct MipeWrap {
  int64_t boundary = 0;           // tokens
  double mipe_threshold = 256.0;  // w_th
  std::optional<double> expand_beyond;
};

/// Queries or keys of the positions first, first + 1, ..., rotated in dimensions 0, 1 by -pi phi(w) floor(i / w) where
/// i >= boundary. MiPE's own rotation by pi phi(w) i / w, which the operator applies afterwards, then ends at that of
/// i mod w. phi(w) as in screening.h, 0 for expanded windows. Angles are computed in float64.
///
/// x_BTHK    raw projections, of any length
/// s_w_H     w = exp(s_w) + 1
/// Gradient  x, s_w.
at::Tensor mipe_wrapped(const at::Tensor& x_BTHK, const at::Tensor& s_w_H, int64_t first, const MipeWrap& options);

}  // namespace tamis::models
