#include "tamis/shootout/summary.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tamis/shootout/testing.h"

namespace tamis::shootout {
namespace {

using nlohmann::json;
using testing::kTwoMixers;
using testing::read;

/// The results of the first mixer's search; a loss of NaN stands for a diverged run.
Results search_results(const std::vector<std::pair<std::string, double>>& losses) {
  Results results;
  for (const auto& [lr, loss] : losses) {
    results["rope/lr-" + lr] = std::isnan(loss) ? json{{"status", "diverged"}, {"reason", "a test"}}
                                                : json{{"status", "done"}, {"loss", loss}};
  }
  return results;
}

json final_result(double loss, double score) {
  return {{"status", "done"},
          {"tokens_per_second", 1000 * loss},
          {"validation", {{"copy", loss}}},
          {"by_position", {{"copy", {{{"first", 0}, {"last", 0}, {"tokens", 4}, {"loss", loss}}}}}},
          {"tasks", {{"copy", {{{"length", 32}, {"instances", 20}, {"score", score}}}}}},
          {"flops_per_token", {{{"length", 32}, {"flops", 5000}}, {{"length", 128}, {"flops", 6000}}}},
          {"state_bytes", {{{"length", 32}, {"bytes", 1000}}, {{"length", 128}, {"bytes", 1960}}}}};
}

const double kDiverged = std::nan("");

TEST(ChooseLr, WaitsForAllRatesOfTheGrid) {
  const ShootoutRecipe recipe = read(kTwoMixers);
  const Results results = search_results({{"0.001", 2.0}, {"0.01", 1.0}});
  EXPECT_FALSE(searched(recipe, 0, results));
  EXPECT_EQ(choose_lr(recipe, 0, results), std::nullopt);
}

TEST(ChooseLr, TakesTheLowestLoss) {
  const ShootoutRecipe recipe = read(kTwoMixers);
  const Results results = search_results({{"0.001", 2.0}, {"0.01", 1.0}, {"0.1", 3.0}});
  EXPECT_TRUE(searched(recipe, 0, results));
  EXPECT_EQ(choose_lr(recipe, 0, results), 0.01);
}

TEST(ChooseLr, IgnoresDivergedRuns) {
  const ShootoutRecipe recipe = read(kTwoMixers);
  EXPECT_EQ(choose_lr(recipe, 0, search_results({{"0.001", kDiverged}, {"0.01", 2.0}, {"0.1", 3.0}})), 0.01);
  const Results diverged = search_results({{"0.001", kDiverged}, {"0.01", kDiverged}, {"0.1", kDiverged}});
  EXPECT_TRUE(searched(recipe, 0, diverged));
  EXPECT_EQ(choose_lr(recipe, 0, diverged), std::nullopt);
}

TEST(Summarise, NamesARateAtTheEdgeOfTheGrid) {
  const ShootoutRecipe recipe = read(kTwoMixers);
  const auto edge = [&](double low, double middle, double high) {
    const Results results = search_results({{"0.001", low}, {"0.01", middle}, {"0.1", high}});
    return summarise(recipe, results)["mixers"][0]["lr_edge"];
  };
  EXPECT_EQ(edge(1, 2, 3), "lowest");
  EXPECT_EQ(edge(3, 2, 1), "highest");
  EXPECT_EQ(edge(2, 1, 3), json());
  EXPECT_EQ(edge(2, 1, kDiverged), json());
}

TEST(Summarise, ASingleRateHasNoEdge) {
  const ShootoutRecipe recipe = read(kTwoMixers, {"shootout.lr=[0.01]"});
  EXPECT_EQ(summarise(recipe, search_results({{"0.01", 1.0}}))["mixers"][0]["lr_edge"], json());
}

TEST(Summarise, WithoutResultsHasTheJobsAndMixers) {
  const json summary = summarise(read(kTwoMixers), {});
  EXPECT_EQ(summary["done"], 0);
  EXPECT_EQ(summary["jobs"], 10);
  EXPECT_EQ(summary["train"]["tokens"], 80 * 128);
  EXPECT_EQ(summary["task_lengths"], (json{{"copy", 32}, {"mqrar", 32}}));
  EXPECT_EQ(summary["mixers"].size(), 2);
  EXPECT_EQ(summary["mixers"][1]["name"], "window");
  EXPECT_EQ(summary["mixers"][1]["chosen_lr"], json());
  EXPECT_EQ(summary["mixers"][1]["search"][0]["status"], "missing");
}

TEST(Summarise, GivesTheScoreAndLossOfGuessing) {
  const json chance = summarise(read(kTwoMixers), {})["chance"];
  EXPECT_DOUBLE_EQ(chance["score"]["copy"], 1.0 / 31);  // ids 1 to 31
  EXPECT_DOUBLE_EQ(chance["loss"]["copy"], std::log(31));
  EXPECT_DOUBLE_EQ(chance["score"]["mqrar"], 1.0 / 128);  // half of 256 ids are values
  EXPECT_DOUBLE_EQ(chance["loss"]["recall"], std::log(128));
}

TEST(Summarise, AveragesTheSeeds) {
  const ShootoutRecipe recipe = read(kTwoMixers);
  Results results = search_results({{"0.001", 2.0}, {"0.01", 1.0}, {"0.1", 3.0}});
  results["rope/seed-1"] = final_result(1.0, 0.5);
  results["rope/seed-2"] = final_result(3.0, 1.0);
  const json mixer = summarise(recipe, results)["mixers"][0];
  EXPECT_EQ(mixer["chosen_lr"], 0.01);
  EXPECT_EQ(mixer["runs"][1]["seed"], 2);
  EXPECT_EQ(mixer["runs"][1]["validation"]["copy"], 3.0);
  EXPECT_EQ(mixer["state_bytes_per_token"], 10.0);  // 960 bytes for 96 tokens
  const json& loss = mixer["summary"]["validation"]["copy"];
  EXPECT_EQ(loss["mean"], 2.0);
  EXPECT_EQ(loss["n"], 2);
  EXPECT_DOUBLE_EQ(loss["sd"], std::sqrt(2.0));
  EXPECT_NEAR(loss["interval_95"][0].get<double>(), 2 - 12.706, 1e-9);  // t of one degree of freedom, sd / sqrt(2) = 1
  EXPECT_EQ(mixer["summary"]["tokens_per_second"]["mean"], 2000);
  EXPECT_EQ(mixer["summary"]["by_position"]["copy"][0]["mean"], 2.0);
  const json& score = mixer["summary"]["tasks"]["copy"][0];
  EXPECT_EQ(score["mean"], 0.75);
  EXPECT_EQ(score["length"], 32);
  EXPECT_EQ(score["interval_95"], (json{0.0, 1.0}));
}

TEST(Summarise, LeavesOutRunsThatAreMissingOrDiverged) {
  const ShootoutRecipe recipe = read(kTwoMixers);
  Results results = search_results({{"0.001", 2.0}, {"0.01", 1.0}, {"0.1", 3.0}});
  results["rope/seed-1"] = {{"status", "diverged"}, {"reason", "a test"}};
  json mixer = summarise(recipe, results)["mixers"][0];
  EXPECT_EQ(mixer["runs"][0]["status"], "diverged");
  EXPECT_EQ(mixer["runs"][1]["status"], "missing");
  EXPECT_FALSE(mixer.contains("summary"));
  results["rope/seed-2"] = final_result(3.0, 1.0);
  mixer = summarise(recipe, results)["mixers"][0];
  EXPECT_EQ(mixer["summary"]["validation"]["copy"]["n"], 1);
  EXPECT_EQ(mixer["summary"]["validation"]["copy"]["mean"], 3.0);
}

}  // namespace
}  // namespace tamis::shootout
