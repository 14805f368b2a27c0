#pragma once

#include <algorithm>
#include <cstdint>

namespace tamis::train {

/// The factor by which the loss is multiplied in float16, so that small gradients of activations do not become 0, and
/// by which the gradients of the parameters are divided again. A power of two, so neither rounds. It is halved by a
/// step in which a gradient overflows, and doubled after kGoodSteps steps without one (Micikevicius et al. 2018). Part
/// of the training state.
struct LossScale {
  static constexpr double kLeast = 1;
  static constexpr int64_t kGoodSteps = 2000;

  double value = 65536;
  int64_t good_steps = 0;  // since the factor changed

  /// Whether a gradient that is not finite may be due to the factor.
  bool can_fall() const { return value > kLeast; }

  void update(bool overflowed) {
    if (!overflowed && ++good_steps < kGoodSteps) return;
    value = overflowed ? std::max(value / 2, kLeast) : value * 2;
    good_steps = 0;
  }
  bool operator==(const LossScale&) const = default;
};

}  // namespace tamis::train
