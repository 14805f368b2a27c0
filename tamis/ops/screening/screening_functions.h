#pragma once

#include <algorithm>
#include <cmath>
#include <numbers>

// The functions of screening as numbers; equations of "Screening Is Enough". The kernels read them from tables, or
// evaluate them in vectors; w and r as functions of the learned scalars are in tamis/ops/window.h. No torch.

namespace tamis::ops {

/// (cos(pi w / w_th) + 1) / 2: phi(w) for w < w_th. Of a number or, elementwise and differentiably, of a tensor.    (7)
template <typename Number>
Number mipe_phi_below_threshold(const Number& w, double threshold) {
  using std::cos;
  return (cos(std::numbers::pi * w / threshold) + 1) / 2;
}

/// phi(w) of MiPE: 1 for the shortest windows, 0 from the threshold on.                                             (7)
inline double mipe_phi(double w, double threshold) {
  return w < threshold ? mipe_phi_below_threshold(w, threshold) : 0;
}

/// d phi / d w.
inline double mipe_phi_slope(double w, double threshold) {
  if (!(w < threshold)) return 0;
  return -std::sin(std::numbers::pi * w / threshold) / 2 * std::numbers::pi / threshold;
}

/// The angle by which MiPE rotates from one token to the next, pi phi(w) / w.                                       (6)
inline double mipe_step(double w, double threshold) {
  return std::numbers::pi * mipe_phi(w, threshold) / w;
}

/// d mipe_step / d s_w, with dw/ds_w = w - 1.
inline double mipe_step_slope(double w, double threshold) {
  if (!(w < threshold)) return 0;  // w may be infinite
  const double phi = mipe_phi(w, threshold), phi_slope = mipe_phi_slope(w, threshold);
  return std::numbers::pi * (phi_slope - phi / w) / w * (w - 1);
}

/// The weight a of a key by its similarity: max(1 - (1 - s) / r, 0)^2.                                              (9)
inline double trim(double similarity, double r) {
  const double root = std::max(1 - (1 - similarity) / r, 0.0);
  return root * root;
}

/// Softmask inside the window for x = pi d / w: (cos(x) + 1) / 2. Of a number or, elementwise, of a tensor.        (10)
template <typename Number>
Number softmask_inside(const Number& x) {
  using std::cos;
  return (cos(x) + 1) / 2;
}

/// Its derivative by s_w, x sin(x) / 2 (1 - 1/w), with dw/ds_w = w - 1.
template <typename Number>
Number softmask_slope_inside(const Number& x, const Number& inverse_w) {
  using std::sin;
  return x * sin(x) / 2 * (1 - inverse_w);
}

/// The weight m of a key `distance` >= 0 tokens before the query.                                                  (10)
inline double softmask(double distance, double w) {
  return distance < w ? softmask_inside(std::numbers::pi * distance / w) : 0;
}

/// d softmask / d s_w.
inline double softmask_slope(double distance, double w) {
  return distance < w ? softmask_slope_inside(std::numbers::pi * distance / w, 1 / w) : 0;
}

/// The length of TanhNorm(h) for that of h.                                                                        (14)
inline double tanh_norm(double length) {
  return std::tanh(length);
}

}  // namespace tamis::ops
