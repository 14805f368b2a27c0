#include "tamis/study/needle_trials.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

namespace tamis::study {
namespace {

using nlohmann::json;

at::Tensor two_heads(double first, double second) {
  return at::tensor({first, second}, at::kDouble).view({1, 2});
}

TEST(NeedleTrials, AreRankedByTheirScore) {
  eval::TaskResult result{.options = {}};
  result.cells = {{.length = 64, .depth = 0.5, .instances = 2}, {.length = 64, .depth = 0.9, .instances = 1}};
  result.trials = {{.cell = 0, .right = false, .first_right = false, .needle_LH = two_heads(0.1, 0.0)},
                   {.cell = 0, .right = true, .first_right = true, .needle_LH = two_heads(0.1, 0.8)},
                   {.cell = 1, .right = false, .first_right = true, .needle_LH = two_heads(0.3, 0.2)}};
  json rows = json::array();
  add_needle_trials(result, [&](const std::string& metric, double value, const json& columns) {
    rows.push_back(columns);
    rows.back().update({{"metric", metric}, {"value", std::round(value * 1000) / 1000}});
  });
  const auto head = [](double value, double depth, int number, int rank) {
    return json{{"metric", "needle_score_head"},
                {"value", value},
                {"length", 64},
                {"depth", depth},
                {"layer", 0},
                {"head", number},
                {"rank", rank}};
  };
  const auto trial = [](double value, const char* outcome, int rank) {
    return json{
        {"metric", "needle_score_trial"}, {"value", value}, {"length", 64}, {"outcome", outcome}, {"rank", rank}};
  };
  EXPECT_EQ(rows, (json{head(0.4, 0.5, 1, 1), head(0.1, 0.5, 0, 2), head(0.3, 0.9, 0, 1), head(0.2, 0.9, 1, 2),
                        trial(0.8, "right", 1), trial(0.3, "first character", 2), trial(0.1, "wrong", 3)}));
}

}  // namespace
}  // namespace tamis::study
