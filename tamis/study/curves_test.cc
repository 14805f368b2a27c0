#include "tamis/study/curves.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tamis/study/table.h"

namespace tamis::study {
namespace {

using nlohmann::json;

/// The rows of one metric, with the value in each.
std::vector<json> rows_of(const std::string& log, const std::string& metric, int64_t batch_tokens = 10) {
  std::vector<json> rows;
  add_curves(log, batch_tokens, [&](const std::string& name, double value, const json& columns) {
    if (name != metric) return;
    rows.push_back(columns);
    rows.back()["value"] = value;
  });
  return rows;
}

std::string train_line(int64_t step, double loss) {
  return fmt::format("{{\"type\": \"train\", \"step\": {}, \"loss\": {}, \"grad_norm\": 2}}\n", step, loss);
}

TEST(AddCurves, AveragesNeighboursToAtMostTwoHundredPoints) {
  std::string log;
  for (int64_t step = 1; step <= 500; ++step) log += train_line(step, static_cast<double>(step));
  const auto rows = rows_of(log, "training_loss");
  ASSERT_EQ(rows.size(), 167u) << "means of three";
  EXPECT_EQ(rows[0], (json{{"step", 3}, {"tokens", 30}, {"value", 2.0}}));
  EXPECT_EQ(rows[166], (json{{"step", 500}, {"tokens", 5000}, {"value", 499.5}})) << "the rest";
  EXPECT_EQ(rows_of(log, "gradient_norm")[5]["value"], 2.0);
  EXPECT_EQ(rows_of(train_line(7, 1.5), "training_loss").size(), 1u);
}

TEST(AddCurves, CountsLossesAboveTheMedianOfTheTwentyBefore) {
  std::string log;
  for (int64_t step = 1; step <= 60; ++step)
    log += train_line(step, step == 10 || step == 40 || step == 50 ? 1.6 : 1.0);
  EXPECT_EQ(rows_of(log, "loss_spikes").at(0)["value"], 2.0) << "step 10 has fewer than twenty before it";
  EXPECT_EQ(rows_of("", "loss_spikes").at(0)["value"], 0.0);
}

TEST(AddCurves, HasTheSmallestMedianAndLargestHeadWithoutInfiniteWindows) {
  const std::string log = "{\"type\": \"tiles\", \"step\": 4, \"windows\": [[9, 2], [null, 5, 7]]}\nno json\n";
  const auto rows = rows_of(log, "window_curve");
  ASSERT_EQ(rows.size(), 2u) << "the largest is infinite";
  EXPECT_EQ(rows[0], (json{{"step", 4}, {"head", "smallest"}, {"value", 2.0}}));
  EXPECT_EQ(rows[1], (json{{"step", 4}, {"head", "median"}, {"value", 7.0}}));
}

TEST(AddCurves, ValidationHasItsSource) {
  const std::string log = "{\"type\": \"validation\", \"step\": 4, \"loss\": 1.25, \"source\": \"text\"}\n";
  EXPECT_EQ(rows_of(log, "validation_curve").at(0), (json{{"step", 4}, {"source", "text"}, {"value", 1.25}}));
}

}  // namespace
}  // namespace tamis::study
