#include "tamis/shootout/statistics.h"

#include <gtest/gtest.h>

#include <vector>

namespace tamis::shootout {
namespace {

TEST(Spread, OfOneSeedHasNoInterval) {
  const auto found = spread(std::vector{1.5});
  EXPECT_EQ(found["mean"], 1.5);
  EXPECT_TRUE(found["sd"].is_null());
  EXPECT_TRUE(found["interval_95"].is_null());
}

TEST(Spread, OfSeedsHasStudentsInterval) {
  const auto found = spread(std::vector{1.0, 2.0, 3.0});
  EXPECT_DOUBLE_EQ(found["mean"], 2.0);
  EXPECT_DOUBLE_EQ(found["sd"], 1.0);
  EXPECT_NEAR(found["interval_95"][0].get<double>(), 2 - 4.303 / 1.7320508, 1e-6);
  EXPECT_NEAR(found["interval_95"][1].get<double>(), 2 + 4.303 / 1.7320508, 1e-6);
}

TEST(ScoreSpread, OfOneSeedIsWilsonsIntervalOfTheInstances) {
  const auto found = score_spread(std::vector{0.1}, 100);  // 10 of 100
  EXPECT_NEAR(found["interval_95"][0].get<double>(), 0.0552, 1e-4);
  EXPECT_NEAR(found["interval_95"][1].get<double>(), 0.1744, 1e-4);
}

TEST(ScoreSpread, NeverClaimsMoreThanInstancesOrSeedsAllow) {
  const auto equal = score_spread(std::vector{0.0, 0.0}, 50);  // equal seeds: the uncertainty of the instances remains
  EXPECT_EQ(equal["interval_95"][0], 0.0);
  EXPECT_GT(equal["interval_95"][1].get<double>(), 0.03);
  const auto apart = score_spread(std::vector{0.2, 0.8}, 1'000'000);  // the uncertainty of the seeds dominates
  EXPECT_EQ(apart["interval_95"][0], 0.0);
  EXPECT_EQ(apart["interval_95"][1], 1.0);
}

}  // namespace
}  // namespace tamis::shootout
