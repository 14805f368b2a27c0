#include "tamis/shootout/tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace tamis::shootout {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

json spread_json(double mean, const json& sd = {}) {
  return {{"mean", mean}, {"sd", sd}, {"n", sd.is_null() ? 1 : 2}};
}

json cell_json(int64_t length, double mean, const json& sd = {}) {
  json cell = spread_json(mean, sd);
  cell["length"] = length;
  return cell;
}

/// A mixer with two finished runs.
json finished_mixer() {
  return {{"name", "rope"},
          {"parameters_without_embedding", 4242},
          {"chosen_lr", 0.01},
          {"lr_edge", nullptr},
          {"search", json::array()},
          {"runs", {{{"status", "done"}, {"threads", 2}}, {{"status", "done"}, {"threads", 2}}}},
          {"flops_per_token", {{{"length", 32}, {"flops", 1'250'000}}}},
          {"state_bytes", {{{"length", 32}, {"bytes", 512}}, {{"length", 128}, {"bytes", 2048}}}},
          {"state_bytes_per_token", 16.0},
          {"summary",
           {{"validation", {{"copy", spread_json(1.5, 0.25)}}},
            {"tokens_per_second", spread_json(12345.6)},
            {"by_position",
             {{"copy",
               {{{"first", 0}, {"last", 0}, {"mean", 3.0}, {"sd", nullptr}},
                {{"first", 2}, {"last", 3}, {"mean", 1.0}, {"sd", 0.5}}}}}},
            {"tasks", {{"copy", {cell_json(32, 0.5, 0.125), cell_json(128, 0.25)}}}}}}};
}

/// A mixer whose runs are all missing.
json missing_mixer() {
  return {{"name", "window"},
          {"parameters_without_embedding", 4242},
          {"chosen_lr", nullptr},
          {"search", {{{"status", "missing"}}}},
          {"runs", json::array()}};
}

TEST(ToMarkdown, WritesAlignedTables) {
  EXPECT_EQ(
      to_markdown({{"mixers", {finished_mixer(), missing_mixer()}}}),
      R"(| mixer  |   lr | parameters |      loss copy | tokens/s | MFLOP/token | state bytes/token | state at the longest |
|--------|-----:|-----------:|---------------:|---------:|------------:|------------------:|---------------------:|
| rope   | 0.01 |       4242 | 1.500 +- 0.250 |    12346 |       1.250 |                16 |              2.0 KiB |
| window |  ... |       4242 |              - |        - |           - |                 - |                    - |

| loss copy after |     0 |            2-3 |
|-----------------|------:|---------------:|
| rope            | 3.000 | 1.000 +- 0.500 |
| window          |     - |              - |

| copy, % |           32 |  128 |
|---------|-------------:|-----:|
| rope    | 50.0 +- 12.5 | 25.0 |
| window  |            - |    - |
)");
}

TEST(ToMarkdown, CountsRunsWithoutAResult) {
  json mixer = finished_mixer();
  mixer["runs"][0]["status"] = "diverged";
  mixer["runs"][1]["status"] = "missing";
  EXPECT_THAT(to_markdown({{"mixers", {mixer}}}), HasSubstr("| 0.01 (1 of 2 diverged) (1 of 2 missing) |"));
}

TEST(ToMarkdown, SaysThatAllRatesDiverged) {
  json mixer = missing_mixer();
  mixer["search"][0]["status"] = "diverged";
  EXPECT_THAT(to_markdown({{"mixers", {mixer}}}), HasSubstr("| window | diverged |"));
}

TEST(ToMarkdown, WarnsOfARateAtTheEdge) {
  json mixer = finished_mixer();
  EXPECT_THAT(to_markdown({{"mixers", {mixer}}}), Not(HasSubstr("shootout.lr")));
  mixer["lr_edge"] = "highest";
  const std::string text = to_markdown({{"mixers", {mixer}}});
  EXPECT_THAT(text, HasSubstr("| 0.01 (edge) |"));
  EXPECT_THAT(text, HasSubstr("rope has its best result at the highest rate of the grid, 0.01: a higher one may be "
                              "better; add one to shootout.lr\n"));
}

TEST(ToMarkdown, SaysThatSpeedsAreNotComparable) {
  json other = finished_mixer();
  other["name"] = "window";
  other["runs"][0]["threads"] = 1;
  EXPECT_THAT(to_markdown({{"mixers", {finished_mixer(), other}}}), HasSubstr("tokens/s (threads differ)"));
}

}  // namespace
}  // namespace tamis::shootout
