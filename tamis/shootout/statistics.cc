#include "tamis/shootout/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace tamis::shootout {
namespace {

using nlohmann::json;

/// The 97.5% quantile of Student's t distribution; beyond the table its last value, which gives a slightly wider
/// interval.
double student_t(size_t degrees) {
  constexpr std::array kQuantiles = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                     2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086};
  return kQuantiles[std::min(degrees, kQuantiles.size()) - 1];
}

}  // namespace

json spread(std::span<const double> values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / n;
  json result = {{"mean", mean}, {"sd", json()}, {"n", values.size()}, {"interval_95", json()}};
  if (values.size() < 2) return result;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double sd = std::sqrt(squares / (n - 1));
  const double half = student_t(values.size() - 1) * sd / std::sqrt(n);
  result["sd"] = sd;
  result["interval_95"] = {mean - half, mean + half};
  return result;
}

json score_spread(std::span<const double> scores, int64_t instances) {
  json result = spread(scores);
  const double mean = result["mean"];
  const eval::Interval wilson = eval::wilson_95_of_mean(mean, instances * static_cast<int64_t>(scores.size()));
  double low = wilson.low, high = wilson.high;
  if (const json& seeds = result["interval_95"]; seeds.is_array()) {
    low = std::max(0.0, std::min(low, seeds[0].get<double>()));
    high = std::min(1.0, std::max(high, seeds[1].get<double>()));
  }
  result["interval_95"] = {low, high};
  return result;
}

}  // namespace tamis::shootout
