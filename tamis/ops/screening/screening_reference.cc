// Screening as the paper writes it, in plain torch. Equation numbers are those of "Screening Is Enough".

#include <ATen/ATen.h>

#include <cmath>
#include <numbers>

#include "tamis/kernels/rows.h"
#include "tamis/ops/attention.h"
#include "tamis/ops/screening/screening.h"

namespace tamis::ops::reference {
namespace {

using kernels::kMinNorm;

constexpr double kPi = std::numbers::pi;

/// x / max(|x|, kMinNorm) along the last dimension; a zero row stays zero and gets no gradient.        (5)
at::Tensor unit(const at::Tensor& x) {
  const at::Tensor squared = x.square().sum(-1, /*keepdim=*/true);
  const at::Tensor norm = at::where(squared > kMinNorm * kMinNorm, squared, kMinNorm * kMinNorm).sqrt();
  return x * (squared != 0) / norm;
}

/// Functions of a head's two scalars, in float64 whatever the dtype of the projections.
struct HeadScalars {
  at::Tensor width;      // w, tokens; infinite where expanded                                     (4)
  at::Tensor inverse;    // 1/w = sigmoid(-s_w): no overflow for any s_w
  at::Tensor step;       // MiPE angle per token, pi phi(w) / w                                    (6), (7)
  at::Tensor inverse_r;  // 1/r                                                                    (4)
};

HeadScalars head_scalars(const at::Tensor& s_w_H, const at::Tensor& s_r_H, const ScreeningOptions& options) {
  const at::Tensor s_w = s_w_H.to(at::kDouble);
  HeadScalars head;
  head.width = s_w.detach().exp() + 1;
  head.inverse = at::sigmoid(-s_w);
  if (options.expand_beyond) {
    const at::Tensor expanded = head.width > *options.expand_beyond;
    head.width = head.width.masked_fill(expanded, INFINITY);
    head.inverse = head.inverse.masked_fill(expanded, 0.0);
  }
  const at::Tensor rotates = head.width < options.mipe_threshold;  // the cosine of phi rises again beyond w_th
  const at::Tensor width = at::where(rotates, s_w, 0.0).exp() + 1;
  const at::Tensor phi = at::where(rotates, (at::cos(kPi / options.mipe_threshold * width) + 1) / 2, 0.0);
  head.step = options.position == "mipe" ? kPi * phi * head.inverse : at::zeros_like(phi);
  head.inverse_r = 1 + at::exp(-s_r_H.to(at::kDouble));
  return head;
}

/// Rotates dimensions 0 and 1 of x_BTHK; the angle, position times step, is reduced in float64.    (6)
at::Tensor rotated(const at::Tensor& x_BTHK, const at::Tensor& position_T, const at::Tensor& step_H) {
  const at::Tensor angle_TH = position_T.unsqueeze(1) * step_H;
  const at::Tensor cos_TH = at::cos(angle_TH).to(x_BTHK.scalar_type());
  const at::Tensor sin_TH = at::sin(angle_TH).to(x_BTHK.scalar_type());
  const at::Tensor x0 = x_BTHK.select(-1, 0), x1 = x_BTHK.select(-1, 1);
  const at::Tensor turned = at::stack({x0 * cos_TH - x1 * sin_TH, x0 * sin_TH + x1 * cos_TH}, -1);
  return at::cat({turned, x_BTHK.narrow(-1, 2, x_BTHK.size(-1) - 2)}, -1);
}

}  // namespace

ScreeningRelevance screening_relevance(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& s_w_H,
                                       const at::Tensor& s_r_H, const ScreeningOptions& options) {
  const int64_t keys = k_BTHK.size(1), first_query = keys - q_BTHK.size(1);
  const auto dtype = widened(q_BTHK).scalar_type();
  const HeadScalars head = head_scalars(s_w_H, s_r_H, options);

  // Only differences of positions matter: the first key has position 0.
  const at::Tensor position = at::arange(keys, s_w_H.options().dtype(at::kDouble));
  const at::Tensor q = rotated(unit(widened(q_BTHK)), position.slice(0, first_query), head.step);
  const at::Tensor k = rotated(unit(widened(k_BTHK)), position, head.step);

  at::Tensor s = at::einsum("bihd,bjhd->bhij", {q, k});                                 // (8)
  s = s - (s - 1).clamp_min(0).detach();                                                // rounding: value at most 1
  const at::Tensor inverse_r = head.inverse_r.to(dtype).view({-1, 1, 1});               //
  const at::Tensor a = (1 - (1 - s) * inverse_r).clamp_min(0).pow(options.trim_power);  // (9)

  const at::Tensor distance = position.slice(0, first_query).unsqueeze(1) - position;  // i - j
  const at::Tensor inside = (distance >= 0).logical_and(distance < head.width.view({-1, 1, 1}));
  const at::Tensor x = kPi * distance.to(dtype) * head.inverse.to(dtype).view({-1, 1, 1});
  const at::Tensor shape = options.softmask == "cosine"   ? (at::cos(x) + 1) / 2
                           : options.softmask == "linear" ? 1 - x / kPi
                                                          : at::ones_like(x);
  at::Tensor m = at::where(inside, shape, at::zeros({}, x.options()));  // (10)
  m = m.unsqueeze(0);
  at::Tensor visible = inside.unsqueeze(0);
  if (options.document) {
    const at::Tensor& document = *options.document;
    const at::Tensor same = document.slice(1, first_query).unsqueeze(2) == document.unsqueeze(1);
    visible = visible.logical_and(same.unsqueeze(1));
  }
  const at::Tensor zero = at::zeros({}, s.options());
  return {at::where(visible, s, zero), at::where(visible, a, zero), at::where(visible, m, zero)};
}

at::Tensor screening(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                     const at::Tensor& s_w_H, const at::Tensor& s_r_H, const ScreeningOptions& options) {
  const ScreeningRelevance map = screening_relevance(q_BTHK, k_BTHK, s_w_H, s_r_H, options);
  const at::Tensor v = unit(widened(v_BTHV));
  at::Tensor u = at::einsum("bhij,bjhv->bihv", {map.trim * map.softmask, v});  // (11), (12)
  if (options.tanh_norm) {
    const at::Tensor squared = u.square().sum(-1, /*keepdim=*/true);
    const at::Tensor norm = at::where(squared > 0, squared, 1.0).sqrt();
    u = u * at::where(squared > 0, at::tanh(norm) / norm, 1.0);  // (13), (14); gradient 1 at h = 0
  }
  if (options.gate) u = u * at::tanh(at::silu(widened(*options.gate)));  // (17), (18)
  return u.to(v_BTHV.scalar_type());
}

}  // namespace tamis::ops::reference
