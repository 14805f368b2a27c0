#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "tamis/study/recipe.h"
#include "tamis/study/table.h"

namespace tamis::study {

/// Fewer seeds give no interval.
inline constexpr size_t kLeastSeeds = 3;

/// What the results say about a claim:
///
///   id, text, paper, statistic, at_least, at_most
///   value        the statistic; null when rows are missing or not finite
///   interval_95  [low, high]: a percentile bootstrap over seeds or, if paired, Student's t; null with fewer than three
///                seeds
///   seeds        number of seeds, 0 for values that have none
///   paired       whether runs of the same seed are compared
///   verdict      "holds" or "does not hold" if the whole interval does, else "undecided"; with a reason
///
/// Statistics, over rows with the metric and the columns `of` (first group) and `than` (second). A seed's value is the
/// mean over its rows; with `best_over` the best value of that column counts, chosen by the mean over seeds:
///
///   value       mean of the first group
///   difference  mean of the first group - mean of the second
///   ratio       mean of the first group / mean of the second
///   slope       least-squares slope of ln metric on ln x
///   gap         x of the first group / x of the second at the same metric, from two such lines, in the middle (by
///               logarithm) of the metrics that both groups reach
///   r_squared   of the line metric = a + b ln x
///   upper_x     the largest x at which the metric, a mean over rows and seeds, is at most `within` above its least,
///               on the lines between the points over ln x. A seed that diverged at an x makes the metric infinite
///               there. With a second group: divided by that of the second
///
/// `x` is a column, or a metric of the same point and seed. Values without a seed are exact: no interval is needed.
///
/// Runs of one seed have the same data in the same order, so their losses rise and fall together. The interval of a
/// difference that is `paired` is that of the mean difference between runs of the same seed, by Student's t
/// distribution: a bootstrap of few pairs would be too narrow. Both groups need the same seeds; else the claim is
/// undecided.
nlohmann::json judge(const Claim& claim, const Rows& rows);

/// A list of what judge() says of each claim. One that needs a claim that does not hold, or is undecided, is undecided.
nlohmann::json judge_all(const std::vector<Claim>& claims, const Rows& rows);

/// The worst verdict of what judge_all() returns: `does not hold`, else `undecided`, else `holds`; null without claims.
nlohmann::json overall_verdict(const nlohmann::json& judged);

/// What distinguishes two sets of claims as their recipes state them, by id: {"changed a", "added b", "removed c"}.
std::vector<std::string> claim_changes(const nlohmann::json& before, const nlohmann::json& now);

/// The 95% interval of the mean of at least two values, by Student's t distribution (beyond 31 values, that of 31).
std::pair<double, double> student_interval(std::span<const double> values);

}  // namespace tamis::study
