#include "tamis/study/claims.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tamis::study {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// A row of the metric "m", without a seed if that is 0.
json claim_row(const std::string& variant, double value, int64_t seed = 0, json more = json::object()) {
  json row = std::move(more);
  row["metric"] = row.value("metric", "m");
  row["value"] = std::isfinite(value) ? json(value) : json();
  row["variant"] = variant;
  if (seed > 0) row["seed"] = seed;
  return row;
}

Claim claim_on(const std::string& statistic) {
  Claim claim{.id = "c", .text = "a claim", .paper = "", .metric = "m", .statistic = statistic};
  claim.of = {{"variant", "a"}};
  if (statistic == "difference" || statistic == "ratio" || statistic == "gap") claim.than = {{"variant", "b"}};
  if (statistic != "value" && statistic != "difference" && statistic != "ratio") claim.x = "x";
  if (statistic == "upper_x") claim.within = 0.25;
  claim.at_least = 0;
  return claim;
}

/// Rows of y = factor x^power at x = 1, 2, 4, 8.
Rows power_rows(const std::string& variant, double factor, double power, int64_t seed = 0) {
  Rows rows;
  for (const double x : {1, 2, 4, 8}) rows.push_back(claim_row(variant, factor * std::pow(x, power), seed, {{"x", x}}));
  return rows;
}

Rows joined_rows(std::initializer_list<Rows> parts) {
  Rows all;
  for (const Rows& part : parts) all.insert(all.end(), part.begin(), part.end());
  return all;
}

TEST(Judge, ValueIsTheMeanOfTheMeansOfSeeds) {
  Claim claim = claim_on("value");
  const json judged =
      judge(claim, {claim_row("a", 1, 1), claim_row("a", 3, 1), claim_row("a", 6, 2), claim_row("b", 100, 1)});
  EXPECT_DOUBLE_EQ(judged["value"], 4);  // of 2 and 6
  EXPECT_EQ(judged["seeds"], 2);
}

TEST(Judge, DifferenceAndRatioCompareTwoGroups) {
  const Rows rows = {claim_row("a", 6), claim_row("b", 4)};
  EXPECT_DOUBLE_EQ(judge(claim_on("difference"), rows)["value"], 2);
  EXPECT_DOUBLE_EQ(judge(claim_on("ratio"), rows)["value"], 1.5);
}

TEST(Judge, SlopeIsTheExponentOfAPower) {
  EXPECT_NEAR(judge(claim_on("slope"), power_rows("a", 5, -0.3))["value"], -0.3, 1e-12);
}

TEST(Judge, GapIsTheRatioOfAbscissasAtTheSameMetric) {
  // 3 x^-0.5 = 3 (x / 4)^-0.5 / 2: the second group needs a quarter of the first's x for the same metric.
  const Rows rows = joined_rows({power_rows("a", 3, -0.5), power_rows("b", 1.5, -0.5)});
  EXPECT_NEAR(judge(claim_on("gap"), rows)["value"], 4, 1e-9);
}

TEST(Judge, GapOfLinesWithDifferentSlopesIsTakenInTheMiddleOfTheCommonRange) {
  // a = 8 / x has 1 to 8 and b = 4 / x^2 has 1/16 to 4: the middle of 1 to 4 is 2, where x is 4 and sqrt(2).
  const Rows rows = joined_rows({power_rows("a", 8, -1), power_rows("b", 4, -2)});
  EXPECT_NEAR(judge(claim_on("gap"), rows)["value"], 4 / std::sqrt(2), 1e-9);
}

/// Rows at x = 1, 10, 100, ...
Rows sweep_rows(const std::string& variant, const std::vector<double>& values, int64_t seed = 0) {
  Rows rows;
  double x = 1;
  for (const double value : values) {
    rows.push_back(claim_row(variant, value, seed, {{"x", x}}));
    x *= 10;
  }
  return rows;
}

TEST(Judge, UpperXIsTheLargestWithinTheMargin) {
  Claim claim = claim_on("upper_x");
  EXPECT_NEAR(judge(claim, sweep_rows("a", {3, 2, 2.5, 4}))["value"], 10 * std::sqrt(10), 1e-9) << "2.25 is half way";
  EXPECT_DOUBLE_EQ(judge(claim, sweep_rows("a", {3, 2, 2.1}))["value"], 100) << "the last one";
  EXPECT_DOUBLE_EQ(judge(claim, sweep_rows("a", {2, 3, 2.25, 9}))["value"], 100) << "a worse one may lie below";
  EXPECT_DOUBLE_EQ(judge(claim, sweep_rows("a", {2}))["value"], 1);
  const json judged = judge(claim, joined_rows({sweep_rows("a", {3, 2, 3}, 1), sweep_rows("a", {3, 2, 2}, 2)}));
  EXPECT_NEAR(judged["value"], 10 * std::sqrt(10), 1e-9) << "the means are 3, 2, 2.5";
  claim.than = {{"variant", "b"}};
  EXPECT_DOUBLE_EQ(judge(claim, joined_rows({sweep_rows("a", {3, 2, 2}), sweep_rows("b", {2, 2})}))["value"], 10);
}

TEST(Judge, UpperXStopsWhereASeedDiverged) {
  Rows rows =
      joined_rows({sweep_rows("a", {3, 2, 2.1}, 1), sweep_rows("a", {3, 2}, 2), sweep_rows("a", {3, 2, 2.1}, 3)});
  rows.push_back(claim_row("a", 1, 2, {{"x", 100}, {"metric", "diverged"}}));
  rows.push_back(claim_row("a", 0, 1, {{"x", 100}, {"metric", "diverged"}}));
  const json judged = judge(claim_on("upper_x"), rows);
  EXPECT_DOUBLE_EQ(judged["value"], 10);
  EXPECT_EQ(judged["interval_95"], (json{10.0, 100.0})) << "without seed 2 it is 100";
  Rows diverged;
  for (const double x : {1, 10}) diverged.push_back(claim_row("a", 1, 1, {{"x", x}, {"metric", "diverged"}}));
  EXPECT_EQ(judge(claim_on("upper_x"), joined_rows({diverged, sweep_rows("a", {3, 2}, 2)}))["verdict"], "undecided")
      << "no rate is stable";
  Claim ratio = claim_on("upper_x");
  ratio.than = {{"variant", "b"}};
  EXPECT_EQ(judge(ratio, joined_rows({diverged, sweep_rows("a", {3, 2}, 2), sweep_rows("b", {3, 2}, 2)}))["verdict"],
            "undecided");
}

TEST(Judge, RSquaredIsThatOfALineInTheLogarithm) {
  Rows exact, rough;
  const std::vector<double> noise = {1, -1, -1, 1};
  for (int i = 0; i < 4; ++i) {
    const double x = std::exp(i);
    exact.push_back(claim_row("a", 2 + 3.0 * i, 0, {{"x", x}}));
    rough.push_back(claim_row("a", i + noise[i], 0, {{"x", x}}));
  }
  EXPECT_NEAR(judge(claim_on("r_squared"), exact)["value"], 1, 1e-12);
  EXPECT_NEAR(judge(claim_on("r_squared"), rough)["value"], 5.0 / 9, 1e-12);  // Sxy = 5, Sxx = 5, Syy = 9
}

TEST(Judge, XMayBeAMetricOfTheSameModelAndSeed) {
  Rows rows;
  for (const double size : {10, 100, 1000}) {
    for (const int64_t seed : {1, 2, 3}) {
      const json more = {{"layers", size}};
      rows.push_back(claim_row("a", 2 * std::pow(size * static_cast<double>(seed), -0.1), seed, more));
      json sizes = more;
      sizes["metric"] = "parameters";
      rows.push_back(claim_row("a", size * static_cast<double>(seed), seed, sizes));
    }
  }
  Claim claim = claim_on("slope");
  claim.x = "parameters";
  const json judged = judge(claim, rows);
  EXPECT_NEAR(judged["value"], -0.1, 1e-12);
  EXPECT_NEAR(judged["interval_95"][0], -0.1, 1e-12);
}

TEST(Judge, AboveCountsValues) {
  Claim claim = claim_on("value");
  claim.above = 0.5;
  EXPECT_DOUBLE_EQ(
      judge(claim, {claim_row("a", 0.4), claim_row("a", 0.5), claim_row("a", 0.6), claim_row("a", 0.9)})["value"], 0.5);
}

TEST(Judge, BestOverTakesTheValueWithTheBestMean) {
  Rows rows;
  for (const int64_t seed : {1, 2}) {
    rows.push_back(claim_row("a", 1 + static_cast<double>(seed), seed, {{"rope_factor", 1}}));  // mean 2.5
    rows.push_back(claim_row("a", seed == 1 ? 9 : 0, seed, {{"rope_factor", 4}}));              // mean 4.5
  }
  Claim claim = claim_on("value");
  claim.best_over = "rope_factor";
  EXPECT_DOUBLE_EQ(judge(claim, rows)["value"], 4.5);
  claim.best = "lowest";
  EXPECT_DOUBLE_EQ(judge(claim, rows)["value"], 2.5);
}

TEST(Judge, ValuesWithoutASeedAreExact) {
  Claim claim = claim_on("value");
  claim.at_least = 2;
  EXPECT_EQ(judge(claim, {claim_row("a", 2)})["verdict"], "holds");
  EXPECT_EQ(judge(claim, {claim_row("a", 1.999)})["verdict"], "does not hold");
  EXPECT_TRUE(judge(claim, {claim_row("a", 2)})["interval_95"].is_null());
}

TEST(Judge, NeedsThreeSeeds) {
  Claim claim = claim_on("value");
  const json judged = judge(claim, {claim_row("a", 5, 1), claim_row("a", 5, 2)});
  EXPECT_EQ(judged["verdict"], "undecided");
  EXPECT_THAT(judged["reason"].get<std::string>(), HasSubstr("2 of the 3 seeds"));
  EXPECT_EQ(judge(claim, {claim_row("a", 5, 1), claim_row("a", 5, 2), claim_row("a", 5, 3)})["verdict"], "holds");
}

TEST(Judge, HoldsOnlyIfTheWholeIntervalDoes) {
  const Rows rows = {claim_row("a", 1, 1), claim_row("a", 2, 2), claim_row("a", 3, 3), claim_row("a", 2, 4)};
  Claim claim = claim_on("value");
  for (const auto& [margin, verdict] :
       std::vector<std::pair<double, std::string>>{{0.9, "holds"}, {2.0, "undecided"}, {3.1, "does not hold"}}) {
    claim.at_least = margin;
    EXPECT_EQ(judge(claim, rows)["verdict"], verdict) << margin;
  }
  claim.at_least = 0.5;
  claim.at_most = 3.5;
  EXPECT_EQ(judge(claim, rows)["verdict"], "holds");
  claim.at_most = 2.0;
  EXPECT_EQ(judge(claim, rows)["verdict"], "undecided");
  claim.at_most = 0.9;
  EXPECT_EQ(judge(claim, rows)["verdict"], "does not hold");
}

TEST(Judge, PairsBySeedLeaveOutWhatBothGroupsHaveInCommon) {
  Rows rows;
  for (const int64_t seed : {1, 2, 3, 4}) {
    const auto common = static_cast<double>(seed);  // the seeds differ by more than the groups do
    rows.push_back(claim_row("a", common + 0.1 + 0.01 * common, seed));
    rows.push_back(claim_row("b", common, seed));
  }
  Claim claim = claim_on("difference");
  const json apart = judge(claim, rows);
  EXPECT_EQ(apart["verdict"], "undecided");
  claim.paired = true;
  const json paired = judge(claim, rows);
  EXPECT_EQ(paired["verdict"], "holds");
  EXPECT_DOUBLE_EQ(paired["value"], apart["value"]);
  // Mean 0.125 and standard deviation 0.01291 of four differences; t = 3.182.
  EXPECT_NEAR(paired["interval_95"][0], 0.125 - 3.182 * 0.01291 / 2, 1e-5);
  EXPECT_NEAR(paired["interval_95"][1], 0.125 + 3.182 * 0.01291 / 2, 1e-5);
  EXPECT_EQ(paired["seeds"], 4);
  EXPECT_EQ(paired["paired"], true);
}

TEST(Judge, PairsNeedTheSameSeeds) {
  Claim claim = claim_on("difference");
  claim.paired = true;
  Rows rows;
  for (const int64_t seed : {1, 2, 3}) {
    rows.push_back(claim_row("a", 2, seed));
    rows.push_back(claim_row("b", 1, seed + 1));
  }
  const json judged = judge(claim, rows);
  EXPECT_EQ(judged["verdict"], "undecided");
  EXPECT_EQ(judged["reason"], "paired, but the groups have the seeds [1,2,3] and [2,3,4]");
  EXPECT_EQ(judge(claim, {claim_row("a", 2), claim_row("b", 1, 1)})["verdict"], "undecided");
}

TEST(Judge, IsUndecidedWithoutResults) {
  const json judged = judge(claim_on("difference"), {claim_row("a", 1)});
  EXPECT_EQ(judged["verdict"], "undecided");
  EXPECT_EQ(judged["reason"], "results are missing");
  EXPECT_TRUE(judged["value"].is_null());
  EXPECT_EQ(judge(claim_on("value"), {})["reason"], "results are missing");
}

TEST(Judge, IsUndecidedIfAValueIsNotFinite) {
  const json judged = judge(claim_on("value"), {claim_row("a", 1, 1), claim_row("a", std::nan(""), 2)});
  EXPECT_EQ(judged["verdict"], "undecided");
  EXPECT_EQ(judged["reason"], "some values are not finite");
  const json divided = judge(claim_on("ratio"), {claim_row("a", 1), claim_row("b", 0)});
  EXPECT_EQ(divided["reason"], "the statistic is not finite");
  EXPECT_EQ(judge(claim_on("slope"), {claim_row("a", 1, 0, {{"x", 2}})})["verdict"], "undecided");
}

TEST(Judge, GivesTheSameIntervalEveryTime) {
  const Rows rows = {claim_row("a", 1, 1), claim_row("a", 2, 2), claim_row("a", 5, 3)};
  EXPECT_EQ(judge(claim_on("value"), rows), judge(claim_on("value"), rows));
}

TEST(StudentInterval, OfEqualValuesIsThatValue) {
  const auto [low, high] = student_interval(std::vector{0.25, 0.25, 0.25});
  EXPECT_DOUBLE_EQ(low, 0.25);
  EXPECT_DOUBLE_EQ(high, 0.25);
}

TEST(StudentInterval, OfThreeValuesIsWide) {
  const auto [low, high] = student_interval(std::vector{1.0, 2.0, 3.0});
  EXPECT_NEAR(low, 2 - 4.303 / std::sqrt(3), 1e-9);
  EXPECT_NEAR(high, 2 + 4.303 / std::sqrt(3), 1e-9);
}

TEST(StudentInterval, CoversTheMeanOfNormalValuesInNineteenOfTwentyTrials) {
  for (const int n : {3, 6, 30, 60}) {
    std::mt19937_64 random(7);
    std::normal_distribution<double> normal(10, 2);
    int covered = 0;
    for (int trial = 0; trial < 2000; ++trial) {
      std::vector<double> values(n);
      for (double& value : values) value = normal(random);
      const auto [low, high] = student_interval(values);
      covered += low <= 10 && 10 <= high ? 1 : 0;
    }
    EXPECT_NEAR(covered / 2000.0, 0.95, 0.02) << n;
  }
}

TEST(Judge, ThreeSeedsOfUnlikeDifferencesAreUndecided) {
  Claim claim = claim_on("difference");
  claim.paired = true;
  Rows rows;
  for (const int64_t seed : {1, 2, 3}) {  // all differences are above 0
    rows.push_back(claim_row("a", 1 + 0.01 * static_cast<double>(seed * seed), seed));
    rows.push_back(claim_row("b", 1, seed));
  }
  claim.at_least = 0;
  claim.at_most.reset();
  EXPECT_EQ(judge(claim, rows)["verdict"], "undecided");
}

TEST(Judge, CountsSeedsWhoseMeanIsAbove) {
  Claim claim = claim_on("value");
  claim.seeds_above = 0.5;
  claim.at_least = 0.7;
  claim.at_most.reset();
  Rows rows;
  for (const int64_t seed : {1, 2, 3, 4}) {  // means of 0.6, but 0.4 for the last
    rows.push_back(claim_row("a", seed == 4 ? 0.0 : 0.4, seed));
    rows.push_back(claim_row("a", 0.8, seed));
  }
  const json judged = judge(claim, rows);
  EXPECT_DOUBLE_EQ(judged["value"], 0.75);
  EXPECT_NEAR(judged["interval_95"][0], 0.1941, 1e-4) << "Clopper and Pearson";
  EXPECT_NEAR(judged["interval_95"][1], 0.9937, 1e-4);
  claim.seeds_above = 0.3;
  EXPECT_EQ(judge(claim, rows)["verdict"], "undecided") << "four of four are too few for 70%";
  claim.at_least = 0.3;
  EXPECT_EQ(judge(claim, rows)["verdict"], "holds");
  json diverged = claim_row("a", 1, 5);
  diverged["metric"] = "diverged";
  rows.push_back(diverged);
  EXPECT_DOUBLE_EQ(judge(claim, rows)["value"], 0.8) << "a seed that diverged is not above";
}

TEST(JudgeAll, LeavesAClaimUndecidedWithoutWhatItNeeds) {
  Claim solved = claim_on("value"), fails = claim_on("value");
  solved.id = "solved";
  solved.text = "It solves the task";
  solved.at_least = 2;
  solved.at_most = std::nullopt;
  fails.id = "fails";
  fails.needs = {"solved"};
  fails.at_least = std::nullopt;
  fails.at_most = 3;
  const auto verdicts = [&](double value) { return judge_all({solved, fails}, {claim_row("a", value)}); };
  EXPECT_EQ(verdicts(2.5)[1]["verdict"], "holds");
  const json judged = verdicts(1);
  EXPECT_EQ(judged[0]["verdict"], "does not hold");
  EXPECT_EQ(judged[1]["verdict"], "undecided");
  EXPECT_EQ(judged[1]["reason"], "needs \"It solves the task\", which does not hold");
  EXPECT_DOUBLE_EQ(judged[1]["value"], 1);
  EXPECT_EQ(judge_all({solved, fails}, {})[1]["reason"], "needs \"It solves the task\", which is undecided");
}

TEST(OverallVerdict, IsTheWorst) {
  const auto of = [](std::initializer_list<const char*> verdicts) {
    json claims = json::array();
    for (const char* verdict : verdicts) claims.push_back({{"verdict", verdict}});
    return overall_verdict(claims);
  };
  EXPECT_TRUE(of({}).is_null());
  EXPECT_EQ(of({"holds", "holds"}), "holds");
  EXPECT_EQ(of({"undecided", "holds"}), "undecided");
  EXPECT_EQ(of({"holds", "undecided"}), "undecided");
  EXPECT_EQ(of({"undecided", "does not hold", "holds"}), "does not hold");
}

}  // namespace
}  // namespace tamis::study
