#include "tamis/study/functions.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tamis/base/testing.h"
#include "tamis/study/table.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

/// All rows of a function; settings that are not given have their defaults.
Rows function_rows(const std::string& name, const json& settings) {
  Rows rows;
  evaluate_function(name, function_settings(name, settings),
                    [&](const std::string& metric, double value, const json& columns) {
                      rows.push_back(columns);
                      rows.back()["metric"] = metric;
                      rows.back()["value"] = value;
                    });
  return rows;
}

/// The value of the only row with these columns.
double value_at(const Rows& rows, const json& where) {
  std::vector<double> found;
  for (const json& row : rows) {
    if (matches(row, where)) found.push_back(row["value"]);
  }
  EXPECT_EQ(found.size(), 1u) << where;
  return found.empty() ? std::nan("") : found[0];
}

std::string function_error(const std::string& name, const json& settings) {
  const auto [code, text] = tamis::testing::error_of([&] { function_settings(name, settings); });
  EXPECT_EQ(code, ExitCode::kUsage) << text;
  return text;
}

TEST(Trim, IsZeroUpToOneMinusRAndOneAtOne) {
  const Rows rows = function_rows("trim", {{"r", 0.5}, {"similarity", {-1, 0.5, 0.75, 1}}});
  EXPECT_EQ(rows.size(), 4u);
  EXPECT_DOUBLE_EQ(value_at(rows, {{"similarity", -1}}), 0);
  EXPECT_DOUBLE_EQ(value_at(rows, {{"similarity", 0.5}}), 0);
  EXPECT_DOUBLE_EQ(value_at(rows, {{"similarity", 0.75}}), 0.25);
  EXPECT_DOUBLE_EQ(value_at(rows, {{"similarity", 1}}), 1);
}

TEST(Softmask, FallsFromOneToZeroAtTheWindow) {
  const Rows rows = function_rows("softmask", {{"w", 16}, {"distance", {0, 8, 16, 20}}});
  EXPECT_DOUBLE_EQ(value_at(rows, {{"distance", 0}}), 1);
  EXPECT_NEAR(value_at(rows, {{"distance", 8}}), 0.5, 1e-15);
  EXPECT_DOUBLE_EQ(value_at(rows, {{"distance", 16}}), 0);
  EXPECT_DOUBLE_EQ(value_at(rows, {{"distance", 20}}), 0);
}

TEST(Mipe, FadesOutAtTheThreshold) {
  const Rows rows = function_rows("mipe", {{"threshold", {100, 200}}, {"w", {50, 150}}});
  EXPECT_NEAR(value_at(rows, {{"threshold", 100}, {"w", 50}}), 0.5, 1e-15);
  EXPECT_DOUBLE_EQ(value_at(rows, {{"threshold", 100}, {"w", 150}}), 0);
  EXPECT_NEAR(value_at(rows, {{"threshold", 200}, {"w", 50}}), (1 + std::sqrt(0.5)) / 2, 1e-15);
}

TEST(TanhNorm, IsTheHyperbolicTangentOfTheNorm) {
  EXPECT_DOUBLE_EQ(value_at(function_rows("tanh_norm", {{"norm", 0.7}}), {}), std::tanh(0.7));
}

TEST(LargestWeight, IsThatOfSoftmaxAndOfScalableSoftmax) {
  const Rows rows =
      function_rows("largest_weight", {{"n", {2, 64, 4096}}, {"largest", 3}, {"others", -2}, {"s", 0.43}});
  for (const double n : {2, 64, 4096}) {
    EXPECT_NEAR(value_at(rows, {{"mechanism", "softmax"}, {"n", n}}), 1 / (1 + (n - 1) * std::exp(-5)), 1e-12);
    EXPECT_NEAR(value_at(rows, {{"mechanism", "ssmax"}, {"n", n}}), 1 / (1 + (n - 1) * std::pow(n, -5 * 0.43)), 1e-12);
  }
}

TEST(TargetWeight, OfASingleKeyIsTheWholeWeight) {
  const Rows rows = function_rows("target_weight", {{"n", 1}, {"seeds", 1}, {"gain", 8}});
  for (const char* mechanism : {"softmax", "ssmax", "entmax", "screening"}) {
    EXPECT_NEAR(value_at(rows, {{"metric", "target_weight"}, {"mechanism", mechanism}}), 1, 1e-12) << mechanism;
    EXPECT_NEAR(value_at(rows, {{"metric", "noise_weight"}, {"mechanism", mechanism}}), 0, 1e-12) << mechanism;
  }
  const double sigmoid = 1 / (1 + std::exp(-8));
  for (const char* mechanism : {"stick-breaking", "sieve"}) {
    EXPECT_NEAR(value_at(rows, {{"metric", "target_weight"}, {"mechanism", mechanism}}), sigmoid, 1e-12) << mechanism;
  }
}

TEST(TargetWeight, AndNoiseAddUpToOneWhereKeysCompete) {
  const Rows rows = function_rows("target_weight", {{"n", 50}, {"seeds", 2}});
  for (const char* mechanism : {"softmax", "ssmax", "entmax"}) {
    for (const int seed : {1, 2}) {
      const auto weight = [&](const char* metric) {
        return value_at(rows, {{"metric", metric}, {"mechanism", mechanism}, {"seed", seed}});
      };
      EXPECT_NEAR(weight("target_weight") + weight("noise_weight"), 1, 1e-12) << mechanism;
    }
  }
  EXPECT_EQ(rows, function_rows("target_weight", {{"n", 50}, {"seeds", 2}})) << "the same random keys every time";
}

TEST(AcceptedShare, OfThreeDimensionsIsHalfOfR) {  // the cosine of random directions in space is uniform in [-1, 1]
  const Rows rows = function_rows("accepted_share", {{"key_dim", {1, 3}}, {"r", {0.1, 0.5, 1}}, {"seeds", 1}});
  for (const double r : {0.1, 0.5, 1.0}) {
    EXPECT_NEAR(value_at(rows, {{"key_dim", 3}, {"r", r}}), r / 2, 0.005);
    EXPECT_NEAR(value_at(rows, {{"key_dim", 1}, {"r", r}}), 0.5, 0.005);
  }
}

TEST(EntmaxSupport, OfSparsemaxIsTheLongestPrefixAboveItsThreshold) {  // alpha = 2: 1 + k z_k > z_1 + ... + z_k
  const Rows rows = function_rows("entmax_support", {{"n", 50}, {"alpha", 2}, {"seeds", 5}});
  for (int64_t seed = 1; seed <= 5; ++seed) {
    at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
    const at::Tensor sorted = std::get<0>(at::randn({50}, generator, at::kDouble).sort(0, /*descending=*/true));
    double sum = 0;
    int64_t support = 0;
    for (int64_t k = 1; k <= 50; ++k) {
      const double z = sorted[k - 1].item<double>();
      sum += z;
      if (1 + static_cast<double>(k) * z > sum) support = k;
    }
    EXPECT_EQ(value_at(rows, {{"seed", seed}}), support) << seed;
  }
}

TEST(Distractors, GiveEveryPartOfTheWeight) {
  const Rows rows = function_rows("distractors", {{"n", 32}, {"seeds", 1}});
  for (const char* mechanism : {"softmax", "ssmax", "entmax"}) {
    double sum = 0;
    for (const json& row : rows) sum += matches(row, {{"mechanism", mechanism}}) ? row["value"].get<double>() : 0;
    EXPECT_NEAR(sum, 1, 1e-12) << mechanism;
  }
}

TEST(SieveProperties, AreZeroOrOneOrSmall) {
  const Rows rows = function_rows("sieve_properties", {{"n", {8, 64}}, {"seeds", 5}});
  EXPECT_EQ(rows.size(), 2u * 5u * 4u);
  for (const json& row : rows) {
    const std::string property = row["property"];
    const double value = row["value"];
    if (property == "ratio_error")
      EXPECT_LT(value, 1e-9) << row;
    else if (property == "weight_sum")
      EXPECT_TRUE(value > 0 && value <= 1) << row;
    else if (property == "distractor_selected")
      EXPECT_EQ(value, 0) << row;
    else
      EXPECT_TRUE(value == 0 || value == 1) << row;
  }
}

TEST(SieveProperties, FindTheEntropyOfTwoKeysThatContradictsTheProposition) {
  // Two keys: the sum of a falls short of 1, and dividing by it can bring the weights closer to each other than c.
  double larger = 0;
  for (const json& row : function_rows("sieve_properties", {{"n", 2}, {"seeds", 20}})) {
    if (row["property"] == "entropy_larger") larger += row["value"].get<double>();
  }
  EXPECT_GT(larger, 0);
}

TEST(FunctionSettings, RefusesWhatItCannotEvaluate) {
  EXPECT_THAT(function_error("tanhnorm", json::object()), HasSubstr("did you mean \"tanh_norm\""));
  EXPECT_THAT(function_error("", json::object()), HasSubstr("unknown function"));
  EXPECT_THAT(function_error("trim", {{"rr", 1}}), HasSubstr("unknown setting of trim \"rr\"; did you mean \"r\""));
  EXPECT_THAT(function_error("trim", {{"r", "wide"}}), HasSubstr("settings.r of trim must be a number"));
  EXPECT_THAT(function_error("trim", {{"r", json::array()}}), HasSubstr("must be a number or a list of numbers"));
  EXPECT_THAT(function_error("trim", {{"r", INFINITY}}), HasSubstr("must be finite"));
  EXPECT_THAT(function_error("largest_weight", {{"n", {4, 0}}}), HasSubstr("must be in 1..16777216, but is 0"));
  EXPECT_THAT(function_error("target_weight", {{"seeds", -1}}), HasSubstr("must be in 1.."));
  EXPECT_THAT(function_error("target_weight", {{"gain", {1, 2}}}),
              HasSubstr("settings.gain of target_weight must be one number"));
}

TEST(FunctionSettings, OfDistractorsNeedMoreKeysThanCompetitors) {
  EXPECT_THAT(function_error("distractors", {{"n", {16, 8}}, {"competitors", 8}}), HasSubstr("must be more than"));
  EXPECT_EQ(function_settings("distractors", {{"n", 9}, {"competitors", 8}})["n"], json::array({9}));
}

TEST(FunctionSettings, CompletesDefaults) {
  const json settings = function_settings("mipe", {{"w", 3}});
  EXPECT_EQ(settings["w"], json::array({3}));
  EXPECT_EQ(settings["threshold"], json::array({256.0}));
}

TEST(FunctionMetrics, AreEmptyForAnUnknownFunction) {
  EXPECT_TRUE(function_metrics("nothing").empty());
  EXPECT_EQ(function_metrics("target_weight").size(), 2u);
}

}  // namespace
}  // namespace tamis::study
