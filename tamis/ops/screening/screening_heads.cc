#include "tamis/ops/screening/screening_heads.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tamis/ops/screening/screening_functions.h"
#include "tamis/ops/window.h"

namespace tamis::ops {
namespace {

/// A function of the distance for `span` distances, padded with zeros: entry kMaskPadding + span - 1 - d is for d.
template <typename Real>
std::vector<Real> table_of(double function(double distance, double w), double w, int64_t span) {
  std::vector<Real> table(static_cast<size_t>(span + 2 * kernels::kMaskPadding), Real{0});
  for (int64_t distance = 0; distance < span; ++distance) {
    table[static_cast<size_t>(kernels::kMaskPadding + span - 1 - distance)] =
        static_cast<Real>(function(static_cast<double>(distance), w));
  }
  return table;
}

}  // namespace

template <typename Real>
bool needs_softmask_table(double window, int64_t span) {
  // m of the first key that may be outside the window: 0 if the window is not longer than `span`.
  return std::isfinite(window) && static_cast<Real>(softmask(static_cast<double>(span), window)) != Real{1};
}

template bool needs_softmask_table<float>(double, int64_t);
template bool needs_softmask_table<double>(double, int64_t);

template <typename Real>
PreparedHead<Real> prepare_head(double s_w, double s_r, int64_t key_dim, int64_t value_dim, int64_t keys,
                                const ScreeningHeadOptions& options, bool derivative) {
  const double window = expanded_window(window_tokens(s_w), options.expand_beyond);
  PreparedHead<Real> head;
  auto& constants = head.constants;
  constants.key_dim = key_dim;
  constants.value_dim = value_dim;
  constants.span = std::max<int64_t>(visible_span(window, keys), 1);
  const double one_minus_r = acceptance_width(-s_r),
               slack = 8 * static_cast<double>(std::numeric_limits<Real>::epsilon());
  constants.inverse_r = static_cast<Real>(inverse_acceptance_width(s_r));
  constants.one_minus_r = static_cast<Real>(one_minus_r);
  constants.surely_rejected = static_cast<Real>(one_minus_r - slack);
  constants.tanh_norm = options.tanh_norm;
  if (options.position == "mipe" && window < options.mipe_threshold) {
    constants.mipe_step = mipe_step(window, options.mipe_threshold);
    head.mipe_step_slope = mipe_step_slope(window, options.mipe_threshold);
    head.turns.resize(2 * kernels::kTileKeys);
    for (int64_t i = 0; i < kernels::kTileKeys; ++i) {
      head.turns[i] = std::cos(static_cast<double>(i) * constants.mipe_step);
      head.turns[kernels::kTileKeys + i] = std::sin(static_cast<double>(i) * constants.mipe_step);
    }
    constants.turns = head.turns.data();
  }
  const bool masked = needs_softmask_table<Real>(window, constants.span);
  if (masked) {
    head.softmask = table_of<Real>(softmask, window, constants.span);
    constants.softmask = head.softmask.data();
  }
  // Where m rounds to 1 its slope is largest at the farthest key.
  const double farthest_slope = softmask_slope(static_cast<double>(constants.span - 1), window);
  if (derivative && (masked || static_cast<Real>(farthest_slope) != 0)) {
    head.slope = table_of<Real>(softmask_slope, window, constants.span);
    constants.softmask_slope = head.slope.data();
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
