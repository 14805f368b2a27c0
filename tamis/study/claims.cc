#include "tamis/study/claims.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <map>
#include <optional>
#include <random>

namespace tamis::study {
namespace {

using nlohmann::json;

constexpr int kResamples = 10000;

/// An observation of one seed.
struct Observation {
  double x;  // 0 if the statistic has none
  double y;
};

/// Observations by seed; the key is null for rows without one.
using Group = std::map<json, std::vector<Observation>>;

/// Columns that name the model of a row, so that two metrics of the same model can be paired.
std::optional<double> same_model(const Rows& rows, const json& row, const std::string& metric) {
  for (const json& other : rows) {
    if (other["metric"] != metric) continue;
    const bool same = std::ranges::all_of(other.items(), [&](const auto& item) {
      if (item.key() == "metric" || item.key() == "value") return true;
      return row.contains(item.key()) && row[item.key()] == item.value();
    });
    if (same && other["value"].is_number()) return other["value"].get<double>();
  }
  return std::nullopt;
}

std::optional<double> x_of(const Claim& claim, const Rows& rows, const json& row) {
  if (claim.x.empty()) return 0.0;
  if (row.contains(claim.x) && row[claim.x].is_number()) return row[claim.x].get<double>();
  return same_model(rows, row, claim.x);
}

/// The row's value or, with `above`, 1 if it is above that, else 0.
double counted_value(const Claim& claim, const json& row) {
  const double value = row["value"];
  return claim.above ? (value > *claim.above ? 1 : 0) : value;
}

double mean(const std::vector<Observation>& observations) {
  double sum = 0;
  for (const Observation& each : observations) sum += each.y;
  return sum / static_cast<double>(observations.size());
}

struct Selected {
  Group group;
  bool finite = true;
};

Selected select(const Claim& claim, const Rows& rows, const json& where) {
  Selected selected;
  for (const json& row : rows) {
    if (row["metric"] != claim.metric || !matches(row, where)) continue;
    const auto x = x_of(claim, rows, row);
    if (!row["value"].is_number() || !x) {
      selected.finite = false;
      continue;
    }
    selected.group[row.value("seed", json())].push_back({*x, counted_value(claim, row)});
  }
  if (!claim.seeds_above && !claim.within) return selected;
  for (const json& row : rows) {  // a seed that diverged has no other results
    if (row["metric"] != "diverged" || row["value"] != 1 || !agrees(row, where)) continue;
    const json seed = row.value("seed", json());
    if (claim.seeds_above) selected.group.try_emplace(seed, std::vector<Observation>{{0.0, -INFINITY}});
    if (const auto x = x_of(claim, rows, row); claim.within && x) selected.group[seed].push_back({*x, INFINITY});
  }
  if (!claim.seeds_above) return selected;
  for (auto& [seed, observations] : selected.group) {
    observations = {{0.0, mean(observations) > *claim.seeds_above ? 1.0 : 0.0}};
  }
  return selected;
}

double mean_of_seeds(const Group& group) {
  double sum = 0;
  for (const auto& [seed, observations] : group) sum += mean(observations);
  return sum / static_cast<double>(group.size());
}

/// `where`, with the value of `best_over` that has the best mean over seeds.
json best_where(const Claim& claim, const Rows& rows, json where) {
  if (claim.best_over.empty()) return where;
  Rows counted;  // with what counts as the value
  for (const json& row : rows) {
    if (row["metric"] != claim.metric || !matches(row, where) || !row.contains(claim.best_over)) continue;
    if (!row["value"].is_number() || !x_of(claim, rows, row)) continue;
    counted.push_back(row);
    counted.back()["value"] = counted_value(claim, row);
  }
  RowList list;
  for (const json& row : counted) list.push_back(&row);
  if (const auto best = best_value(list, claim.best_over, claim.best == "highest")) where[claim.best_over] = *best;
  return where;
}

struct Line {
  double intercept, slope, r_squared;
};

/// Least squares of y on x.
Line fit(const std::vector<std::pair<double, double>>& points) {
  const auto n = static_cast<double>(points.size());
  double x = 0, y = 0, xx = 0, xy = 0, yy = 0;
  for (const auto& [a, b] : points) x += a / n, y += b / n;
  for (const auto& [a, b] : points) xx += (a - x) * (a - x), xy += (a - x) * (b - y), yy += (b - y) * (b - y);
  const double slope = xy / xx;
  return {y - slope * x, slope, yy == 0 ? 1 : xy * xy / (xx * yy)};
}

Line fit_group(const Group& group, bool log_y) {
  std::vector<std::pair<double, double>> points;
  for (const auto& [seed, observations] : group) {
    for (const Observation& each : observations)
      points.emplace_back(std::log(each.x), log_y ? std::log(each.y) : each.y);
  }
  return fit(points);
}

std::pair<double, double> range_of_y(const Group& group) {
  std::pair<double, double> range = {INFINITY, -INFINITY};
  for (const auto& [seed, observations] : group) {
    for (const Observation& each : observations) {
      range = {std::min(range.first, each.y), std::max(range.second, each.y)};
    }
  }
  return range;
}

double gap(const Group& of, const Group& than) {
  const auto [of_least, of_most] = range_of_y(of);
  const auto [than_least, than_most] = range_of_y(than);
  const double least = std::max(of_least, than_least), most = std::min(of_most, than_most);
  const double level = (std::log(least) + std::log(most)) / 2;  // between the groups if their ranges do not overlap
  const Line a = fit_group(of, /*log_y=*/true), b = fit_group(than, /*log_y=*/true);
  return std::exp((level - a.intercept) / a.slope - (level - b.intercept) / b.slope);
}

double upper_x(const Group& group, double within) {
  std::map<double, std::vector<Observation>> by_x;
  for (const auto& [seed, observations] : group) {
    for (const Observation& each : observations) by_x[each.x].push_back(each);
  }
  std::vector<Observation> means;
  double limit = INFINITY;
  for (const auto& [x, observations] : by_x) {
    means.push_back({x, mean(observations)});
    limit = std::min(limit, means.back().y + within);
  }
  if (std::isinf(limit)) return NAN;  // a seed diverged at every x
  size_t last = means.size() - 1;
  while (means[last].y > limit) --last;  // ends at the least one
  if (last + 1 == means.size() || std::isinf(means[last + 1].y)) return means[last].x;
  const double share = (limit - means[last].y) / (means[last + 1].y - means[last].y);
  return means[last].x * std::pow(means[last + 1].x / means[last].x, share);
}

double statistic_of(const Claim& claim, const Group& of, const Group& than) {
  const std::string& name = claim.statistic;
  if (name == "upper_x") return upper_x(of, *claim.within) / (than.empty() ? 1 : upper_x(than, *claim.within));
  if (name == "difference") return mean_of_seeds(of) - mean_of_seeds(than);
  if (name == "ratio") return mean_of_seeds(of) / mean_of_seeds(than);
  if (name == "slope") return fit_group(of, /*log_y=*/true).slope;
  if (name == "r_squared") return fit_group(of, /*log_y=*/false).r_squared;
  if (name == "gap") return gap(of, than);
  return mean_of_seeds(of);
}

/// The group with as many seeds, drawn with replacement.
Group resample(const Group& group, std::mt19937_64& random) {
  Group drawn;
  std::vector<const std::vector<Observation>*> seeds;
  for (const auto& [seed, observations] : group) seeds.push_back(&observations);
  for (size_t i = 0; i < seeds.size(); ++i) drawn[i] = *seeds[random() % seeds.size()];
  return drawn;
}

/// Percentiles of the statistic over resamples of the seeds of each group; none if no resample has a finite one.
std::optional<std::pair<double, double>> bootstrap_interval(const Claim& claim, const Group& of, const Group& than) {
  std::mt19937_64 random(1);
  std::vector<double> values;
  for (int i = 0; i < kResamples; ++i) {
    const Group first = resample(of, random), second = resample(than, random);
    const double value = statistic_of(claim, first, second);
    if (std::isfinite(value)) values.push_back(value);
  }
  if (values.empty()) return std::nullopt;
  std::ranges::sort(values);
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return std::pair{at(0.025), at(0.975)};
}

/// The probability of at most `hits` of n, each with probability p.
double binomial_at_most(int64_t hits, int64_t n, double p) {
  const auto log_factorial = [](int64_t k) { return std::lgamma(static_cast<double>(k) + 1); };
  double sum = 0;
  for (int64_t k = 0; k <= hits; ++k) {
    sum += std::exp(log_factorial(n) - log_factorial(k) - log_factorial(n - k) + static_cast<double>(k) * std::log(p) +
                    static_cast<double>(n - k) * std::log1p(-p));
  }
  return sum;
}

/// Clopper and Pearson's exact interval of a share of seeds, each of which counts 0 or 1.
std::pair<double, double> share_interval(const Group& group) {
  const auto n = static_cast<int64_t>(group.size());
  const auto hits = static_cast<int64_t>(std::llround(mean_of_seeds(group) * static_cast<double>(n)));
  const auto solve = [&](int64_t most, double probability) {  // binomial_at_most falls with p
    double low = 0, high = 1;
    for (int i = 0; i < 60; ++i) {
      const double middle = (low + high) / 2;
      (binomial_at_most(most, n, middle) > probability ? low : high) = middle;
    }
    return (low + high) / 2;
  };
  return {hits == 0 ? 0 : solve(hits - 1, 0.975), hits == n ? 1 : solve(hits, 0.025)};
}

/// Of the mean difference between the runs of a seed.
std::pair<double, double> paired_interval(const Group& of, const Group& than) {
  std::vector<double> differences;
  for (const auto& [seed, observations] : of) {
    differences.push_back(mean_of_seeds({{seed, observations}}) - mean_of_seeds({{seed, than.at(seed)}}));
  }
  return student_interval(differences);
}

std::vector<json> seeds_of(const Group& group) {
  std::vector<json> seeds;
  for (const auto& [seed, observations] : group) seeds.push_back(seed);
  return seeds;
}

bool is_exact(const Group& group) {
  return group.size() <= 1 && (group.empty() || group.begin()->first.is_null());
}

std::string verdict_of(const Claim& claim, double low, double high) {
  const auto holds = [&](double value) {
    return (!claim.at_least || value >= *claim.at_least) && (!claim.at_most || value <= *claim.at_most);
  };
  if (holds(low) && holds(high)) return "holds";
  const bool below = claim.at_least && high < *claim.at_least, above = claim.at_most && low > *claim.at_most;
  return below || above ? "does not hold" : "undecided";
}

}  // namespace

std::vector<std::string> claim_statistics() {
  return {"value", "difference", "ratio", "slope", "gap", "r_squared", "upper_x"};
}

std::vector<std::string> claim_changes(const json& before, const json& now) {
  std::vector<std::string> changes;
  for (const auto& [id, claim] : now.items()) {
    if (!before.contains(id)) {
      changes.push_back("added " + id);
    } else if (before[id] != claim) {
      changes.push_back("changed " + id);
    }
  }
  for (const auto& [id, claim] : before.items()) {
    if (!now.contains(id)) changes.push_back("removed " + id);
  }
  return changes;
}

std::pair<double, double> student_interval(std::span<const double> values) {
  // The 97.5th percentile of Student's t distribution with 1, 2, ... degrees of freedom.
  static constexpr std::array kStudent = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
                                          2.201,  2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
                                          2.080,  2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042};
  const auto n = static_cast<double>(values.size());
  double mean = 0, squares = 0;
  for (const double value : values) mean += value / n;
  for (const double value : values) squares += (value - mean) * (value - mean);
  const double deviation = std::sqrt(squares / (n - 1));
  const double half = kStudent[std::min(values.size() - 2, kStudent.size() - 1)] * deviation / std::sqrt(n);
  return {mean - half, mean + half};
}

json judge(const Claim& claim, const Rows& rows) {
  json result = {
      {"id", claim.id},         {"text", claim.text}, {"paper", claim.paper},  {"statistic", claim.statistic},
      {"metric", claim.metric}, {"value", json()},    {"interval_95", json()}, {"seeds", 0},
      {"verdict", "undecided"}, {"reason", ""},       {"paired", claim.paired}};
  result["at_least"] = claim.at_least ? json(*claim.at_least) : json();
  result["at_most"] = claim.at_most ? json(*claim.at_most) : json();
  if (claim.above) result["above"] = *claim.above;
  if (claim.seeds_above) result["seeds_above"] = *claim.seeds_above;
  if (claim.within) result["within"] = *claim.within, result["x"] = claim.x;
  const auto undecided = [&](const std::string& reason) {
    result["reason"] = reason;
    return result;
  };
  const Selected of = select(claim, rows, best_where(claim, rows, claim.of));
  const Selected than = claim.than.empty() ? Selected{} : select(claim, rows, best_where(claim, rows, claim.than));
  if (of.group.empty() || (than.group.empty() && !claim.than.empty())) return undecided("results are missing");
  if (!of.finite || !than.finite) return undecided("some values are not finite");
  if (claim.paired && seeds_of(of.group) != seeds_of(than.group)) {
    return undecided(fmt::format("paired, but the groups have the seeds {} and {}", json(seeds_of(of.group)).dump(),
                                 json(seeds_of(than.group)).dump()));
  }
  const double value = statistic_of(claim, of.group, than.group);
  if (!std::isfinite(value)) return undecided("the statistic is not finite");
  result["value"] = value;
  if (is_exact(of.group) && is_exact(than.group)) {
    result["verdict"] = verdict_of(claim, value, value);
    return result;
  }
  size_t seeds = of.group.size();
  if (!is_exact(than.group)) seeds = std::min(seeds, than.group.size());
  result["seeds"] = seeds;
  if (seeds < kLeastSeeds)
    return undecided(fmt::format("{} of the {} seeds that an interval needs", seeds, kLeastSeeds));
  std::optional<std::pair<double, double>> interval;
  if (claim.paired) {
    interval = paired_interval(of.group, than.group);
  } else if (claim.seeds_above && claim.statistic == "value") {
    interval = share_interval(of.group);
  } else {
    interval = bootstrap_interval(claim, of.group, than.group);
  }
  if (!interval) return undecided("the statistic has no interval");
  result["interval_95"] = {interval->first, interval->second};
  result["verdict"] = verdict_of(claim, interval->first, interval->second);
  return result;
}

json judge_all(const std::vector<Claim>& claims, const Rows& rows) {
  json all = json::array();
  for (const Claim& claim : claims) {
    json judged = judge(claim, rows);
    for (const json& other : all) {  // those that it needs come before it
      const bool needed = std::ranges::find(claim.needs, other["id"].get<std::string>()) != claim.needs.end();
      if (!needed || other["verdict"] == "holds") continue;
      judged["verdict"] = "undecided";
      judged["reason"] = fmt::format("needs \"{}\", which {}", other["text"].get<std::string>(),
                                     other["verdict"] == "undecided" ? "is undecided" : "does not hold");
      break;
    }
    all.push_back(std::move(judged));
  }
  return all;
}

json overall_verdict(const json& judged) {
  json verdict;
  for (const json& claim : judged) {
    if (claim["verdict"] == "does not hold") return claim["verdict"];
    if (claim["verdict"] == "undecided" || verdict.is_null()) verdict = claim["verdict"];
  }
  return verdict;
}

}  // namespace tamis::study
