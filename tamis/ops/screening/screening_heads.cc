#include "tamis/ops/screening/screening_heads.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "tamis/ops/window.h"

namespace tamis::ops {

template <typename Real>
PreparedHead<Real> prepare_head(double s_w, double s_r, int64_t key_dim, int64_t value_dim, int64_t keys,
                                const ScreeningHeadOptions& options, bool derivative) {
  constexpr double kPi = std::numbers::pi;
  const double window = expanded_window(window_tokens(s_w), options.expand_beyond);
  PreparedHead<Real> head;
  auto& constants = head.constants;
  constants.key_dim = key_dim;
  constants.value_dim = value_dim;
  constants.span = std::max<int64_t>(visible_span(window, keys), 1);
  const double one_minus_r = acceptance_width(-s_r),
               slack = 8 * static_cast<double>(std::numeric_limits<Real>::epsilon());
  constants.inverse_r = static_cast<Real>(std::min(1 + std::exp(-s_r), 1e30));
  constants.one_minus_r = static_cast<Real>(one_minus_r);
  constants.surely_rejected = static_cast<Real>(one_minus_r - slack);
  constants.tanh_norm = options.tanh_norm;
  if (options.position == "mipe" && window < options.mipe_threshold) {
    const double x = kPi * window / options.mipe_threshold;
    const double phi = (std::cos(x) + 1) / 2;                                  // (7)
    const double phi_slope = -std::sin(x) / 2 * kPi / options.mipe_threshold;  // d phi / d w
    constants.mipe_step = kPi * phi / window;                                  // (6)
    head.turns.resize(2 * kernels::kTileKeys);
    for (int64_t i = 0; i < kernels::kTileKeys; ++i) {
      head.turns[i] = std::cos(static_cast<double>(i) * constants.mipe_step);
      head.turns[kernels::kTileKeys + i] = std::sin(static_cast<double>(i) * constants.mipe_step);
    }
    constants.turns = head.turns.data();
    head.mipe_step_slope = kPi * (phi_slope - phi / window) / window * (window - 1);  // dw/ds_w = w - 1
  }
  if (std::isfinite(window)) {
    const size_t size = static_cast<size_t>(constants.span + 2 * kernels::kMaskPadding);
    head.softmask.resize(size);
    if (derivative) head.slope.resize(size);
    kernels::fill_softmask(window, constants.span, head.softmask.data(), derivative ? head.slope.data() : nullptr);
    constants.softmask = head.softmask.data();
    if (derivative) constants.softmask_slope = head.slope.data();
  }
  return head;
}

template PreparedHead<float> prepare_head(double, double, int64_t, int64_t, int64_t, const ScreeningHeadOptions&, bool);
template PreparedHead<double> prepare_head(double, double, int64_t, int64_t, int64_t, const ScreeningHeadOptions&,
                                           bool);

int64_t block_for_span(int64_t span) {
  return span <= 64 ? kernels::kBlockQueries / 2 : kernels::kBlockQueries;
}

}  // namespace tamis::ops
