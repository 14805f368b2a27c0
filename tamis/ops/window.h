#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <optional>

// Windows: what the learned scalars of a screening head mean, Eq. (4) of "Screening Is Enough", and how many keys a
// window shows. No torch.

namespace tamis::ops {

/// w = exp(s_w) + 1: a query sees keys less than w tokens before it. s_w may be infinite. Of a number or, elementwise
/// and differentiably, of a tensor.
template <typename Number>
Number window_tokens(const Number& s_w) {
  using std::exp;
  return exp(s_w) + 1;
}

/// r = sigmoid(s_r), in [0, 1]: similarities up to 1 - r are rejected. 1 - r without cancellation is
/// acceptance_width(-s_r).
inline double acceptance_width(double s_r) {
  return 1 / (1 + std::exp(-s_r));
}

/// The s_r whose acceptance width is r.
inline double acceptance_scalar(double r) {
  return std::log(r) - std::log1p(-r);
}

/// 1 / r; at most 1e30, so that it stays finite in float32.
inline double inverse_acceptance_width(double s_r) {
  return std::min(1 + std::exp(-s_r), 1e30);
}

/// Window expansion at inference (SWE): a window of more than `expand_beyond` tokens becomes infinite.
inline double expanded_window(double window, std::optional<double> expand_beyond) {
  return expand_beyond && window > *expand_beyond ? std::numeric_limits<double>::infinity() : window;
}

/// Tokens: no sequence fills a longer window.
inline constexpr int64_t kLongestSpan = 1'000'000'000'000;

/// Distances 0, 1, ... that a query sees among `keys` keys: min(ceil(w), keys).
inline int64_t visible_span(double window, int64_t keys) {
  return window < static_cast<double>(keys) ? static_cast<int64_t>(std::ceil(window)) : keys;
}

/// Keys that a query sees, its own included: the mean over the queries of a sequence of `length` tokens. Query t sees
/// min(t + 1, ceil(w)); if `strict`, min(t, ceil(w)) without its own.
inline double mean_visible_keys(double window, int64_t length, bool strict = false) {
  const int64_t most = strict ? length - 1 : length;
  const auto T = static_cast<double>(most), span = static_cast<double>(visible_span(window, most));
  return (span * (span + 1) / 2 + (T - span) * span) / static_cast<double>(length);
}

}  // namespace tamis::ops
