#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "tamis/eval/interval.h"

namespace tamis::shootout {

/// {"mean", "sd", "n", "interval_95": [low, high]} of one value per seed: sd with n - 1 degrees of freedom, and
/// Student's 95% interval mean +- t sd / sqrt(n). Both are null for n = 1.
nlohmann::json spread(std::span<const double> values);

/// The same for scores in [0, 1], each the mean of `instances` instances. The interval is the union of Student's,
/// within [0, 1], and Wilson's of all instances. For one seed only Wilson's remains, which does not cover other seeds.
nlohmann::json score_spread(std::span<const double> scores, int64_t instances);

}  // namespace tamis::shootout
