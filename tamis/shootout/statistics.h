#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "tamis/eval/interval.h"

namespace tamis::shootout {

/// {"mean", "sd", "n", "interval_95": [low, high]} of one value for each seed; sd and interval are null for fewer than
/// two. The interval is Student's, mean +- t sd / sqrt(n).
nlohmann::json spread(std::span<const double> values);

/// The same of scores in [0, 1], each the mean of `instances`: the interval holds Wilson's of all instances too, which
/// is what there is for one seed. It says nothing of other seeds then.
nlohmann::json score_spread(std::span<const double> scores, int64_t instances);

}  // namespace tamis::shootout
