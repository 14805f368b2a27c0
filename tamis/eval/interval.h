#pragma once

#include <cmath>
#include <cstdint>

namespace tamis::eval {

struct Interval {
  double low = 0;
  double high = 1;
};

/// Wilson's 95% interval of a probability that was estimated as p from n = `trials` trials; it is valid at p = 0 and
/// p = 1 too. With z = 1.96:
///   (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
/// It is also a conservative interval for a mean p of scores in [0, 1], because their variance is at most p (1 - p).
inline Interval wilson_95_of_mean(double p, int64_t trials) {
  if (trials == 0) return {};
  const double z = 1.959963984540054;
  const double n = static_cast<double>(trials);
  const double centre = p + z * z / (2 * n);
  const double spread = z * std::sqrt(p * (1 - p) / n + z * z / (4 * n * n));
  const double scale = 1 / (1 + z * z / n);
  return {std::fmax(0, (centre - spread) * scale), std::fmin(1, (centre + spread) * scale)};
}

/// The same for p = hits / trials.
inline Interval wilson_95(int64_t hits, int64_t trials) {
  return wilson_95_of_mean(static_cast<double>(hits) / static_cast<double>(trials), trials);
}

}  // namespace tamis::eval
