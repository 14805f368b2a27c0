#include "tamis/ops/screening/acceptance.h"

#include <cmath>
#include <numbers>

namespace tamis::ops {
namespace {

/// Integral of the density from the angle 0 to `angle`, not normalised: s = cos(angle) makes it sin^(dims - 2), smooth
/// for every dims >= 2.
double integral(double angle, int64_t dims) {
  constexpr int kSteps = 4096;
  double sum = 0;
  for (int i = 0; i < kSteps; ++i) {
    sum += std::pow(std::sin(angle * (i + 0.5) / kSteps), static_cast<double>(dims - 2));
  }
  return sum * angle / kSteps;
}

/// The share of the pairs whose similarity exceeds 1 - r.
double accepted_share(double r, int64_t dims) {
  return integral(std::acos(1 - r), dims) / integral(std::numbers::pi, dims);
}

}  // namespace

double acceptance_for(double share, int64_t dims) {
  double low = 0, high = 1;
  for (int halving = 0; halving < 50; ++halving) {
    const double middle = (low + high) / 2;
    (accepted_share(middle, dims) < share ? low : high) = middle;
  }
  return high;
}

}  // namespace tamis::ops
