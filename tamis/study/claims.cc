#include "tamis/study/claims.h"

#include <fmt/format.h>

#include <algorithm>
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
  return selected;
}

double mean(const std::vector<Observation>& observations) {
  double sum = 0;
  for (const Observation& each : observations) sum += each.y;
  return sum / static_cast<double>(observations.size());
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

double statistic_of(const Claim& claim, const Group& of, const Group& than) {
  const std::string& name = claim.statistic;
  if (name == "difference") return mean_of_seeds(of) - mean_of_seeds(than);
  if (name == "ratio") return mean_of_seeds(of) / mean_of_seeds(than);
  if (name == "slope") return fit_group(of, /*log_y=*/true).slope;
  if (name == "r_squared") return fit_group(of, /*log_y=*/false).r_squared;
  if (name == "gap") return gap(of, than);
  return mean_of_seeds(of);
}

/// As many indices of the group's seeds as it has, drawn with replacement.
std::vector<size_t> draw_seeds(const Group& group, std::mt19937_64& random) {
  std::vector<size_t> drawn(group.size());
  for (size_t& index : drawn) index = random() % group.size();
  return drawn;
}

/// The group of the seeds with these indices.
Group take_seeds(const Group& group, const std::vector<size_t>& drawn) {
  std::vector<const std::vector<Observation>*> seeds;
  for (const auto& [seed, observations] : group) seeds.push_back(&observations);
  Group taken;
  for (size_t i = 0; i < drawn.size(); ++i) taken[i] = *seeds[drawn[i]];
  return taken;
}

/// The statistic of each resample that has a finite one.
std::vector<double> resampled(const Claim& claim, const Group& of, const Group& than) {
  std::mt19937_64 random(1);
  std::vector<double> values;
  for (int i = 0; i < kResamples; ++i) {
    const std::vector<size_t> first = draw_seeds(of, random);
    const std::vector<size_t> second = claim.paired ? first : draw_seeds(than, random);
    const double value = statistic_of(claim, take_seeds(of, first), take_seeds(than, second));
    if (std::isfinite(value)) values.push_back(value);
  }
  return values;
}

std::vector<json> seeds_of(const Group& group) {
  std::vector<json> seeds;
  for (const auto& [seed, observations] : group) seeds.push_back(seed);
  return seeds;
}

std::pair<double, double> percentiles(std::vector<double> values) {
  std::ranges::sort(values);
  const auto at = [&](double share) {
    return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1))];
  };
  return {at(0.025), at(0.975)};
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
  return {"value", "difference", "ratio", "slope", "gap", "r_squared"};
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

std::pair<double, double> bootstrap_interval(std::span<const double> values) {
  std::mt19937_64 random(1);
  std::vector<double> means;
  for (int i = 0; i < kResamples; ++i) {
    double sum = 0;
    for (size_t j = 0; j < values.size(); ++j) sum += values[random() % values.size()];
    means.push_back(sum / static_cast<double>(values.size()));
  }
  return percentiles(std::move(means));
}

json judge(const Claim& claim, const Rows& rows) {
  json result = {
      {"id", claim.id},         {"text", claim.text}, {"paper", claim.paper},  {"statistic", claim.statistic},
      {"metric", claim.metric}, {"value", json()},    {"interval_95", json()}, {"seeds", 0},
      {"verdict", "undecided"}, {"reason", ""},       {"paired", claim.paired}};
  result["at_least"] = claim.at_least ? json(*claim.at_least) : json();
  result["at_most"] = claim.at_most ? json(*claim.at_most) : json();
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
  std::vector<double> drawn = resampled(claim, of.group, than.group);
  if (drawn.empty()) return undecided("the statistic has no interval");
  const auto [low, high] = percentiles(std::move(drawn));
  result["interval_95"] = {low, high};
  result["verdict"] = verdict_of(claim, low, high);
  return result;
}

}  // namespace tamis::study
