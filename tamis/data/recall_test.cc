#include "tamis/data/recall.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace tamis::data {
namespace {

const Settings kSettings = {{"vocab", 12}};  // keys 1..5, values 6..11

std::optional<int64_t> solve(const std::vector<int64_t>& read) {
  return solve_recall(read, kSettings);
}

TEST(Recall, DrawsEveryKeyAndValueOnce) {
  Random random({3});
  const auto keys = draw_keys(random, kSettings, 5);
  const auto values = draw_values(random, kSettings, 6);
  EXPECT_EQ(std::set(keys.begin(), keys.end()), (std::set<int64_t>{1, 2, 3, 4, 5}));
  EXPECT_EQ(std::set(values.begin(), values.end()), (std::set<int64_t>{6, 7, 8, 9, 10, 11}));
  std::set<int64_t> first;
  for (int i = 0; i < 200; ++i) first.insert(draw_keys(random, kSettings, 1).at(0));
  EXPECT_EQ(first.size(), 5u);
}

TEST(Recall, SolverAnswersWithTheLatestValue) {
  EXPECT_EQ(solve({1, 7, 2, 8, 1}), 7);
  EXPECT_EQ(solve({1, 7, 2, 8, 1, 9, 0, 1}), 9);
  EXPECT_EQ(solve({1, 7, 2, 8, 0, 1, 2}), 8);
}

TEST(Recall, SolverFindsNoAnswerWithoutAQuery) {
  EXPECT_EQ(solve({}), std::nullopt);
  EXPECT_EQ(solve({1}), std::nullopt);
  EXPECT_EQ(solve({1, 7}), std::nullopt);
  EXPECT_EQ(solve({1, 7, 2}), std::nullopt);
  EXPECT_EQ(solve({1, 7, 0}), std::nullopt);
  EXPECT_EQ(solve({1, 7, 3, 3}), std::nullopt);
}

}  // namespace
}  // namespace tamis::data
