#include "tamis/shootout/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/shootout/testing.h"

namespace tamis::shootout {
namespace {

using ::testing::ElementsAre;
using testing::kTwoMixers;
using testing::read;

std::vector<std::string> names_of(const std::vector<Job>& jobs) {
  std::vector<std::string> names;
  for (const Job& job : jobs) names.push_back(job.name);
  return names;
}

TEST(Plan, SearchesEveryRateWithTheFirstSeed) {
  const ShootoutRecipe recipe = read(kTwoMixers);
  const std::vector<Job> jobs = search_jobs(recipe, 1);
  EXPECT_THAT(names_of(jobs), ElementsAre("window/lr-0.001", "window/lr-0.01", "window/lr-0.1"));
  EXPECT_FALSE(jobs[1].final);
  EXPECT_EQ(jobs[1].mixer, 1);
  EXPECT_EQ(jobs[1].recipe.train.lr, 0.01);
  EXPECT_EQ(jobs[1].recipe.train.seed, 1);
  EXPECT_EQ(jobs[1].recipe.model["pattern"], "w");
  EXPECT_EQ(jobs[1].run(), "runs/small/window/lr-0.01-seed-1");
}

TEST(Plan, TrainsEverySeedWithTheChosenRate) {
  const ShootoutRecipe recipe = read(kTwoMixers);
  const std::vector<Job> jobs = final_jobs(recipe, 0, 0.01);
  EXPECT_THAT(names_of(jobs), ElementsAre("rope/seed-1", "rope/seed-2"));
  EXPECT_TRUE(jobs[1].final);
  EXPECT_EQ(jobs[1].recipe.train.seed, 2);
  EXPECT_EQ(jobs[1].recipe.train.lr, 0.01);
  EXPECT_EQ(jobs[0].run(), search_jobs(recipe, 0)[1].run());  // trained once
}

TEST(Plan, ShorterSearchesHaveAShorterWarmUpAndTheirOwnDirectory) {
  const ShootoutRecipe recipe = read(kTwoMixers, {"shootout.search_steps=20"});
  const Job job = search_jobs(recipe, 0).front();
  EXPECT_EQ(job.recipe.train.steps, 20);
  EXPECT_EQ(job.recipe.train.warmup_steps, 3);  // 10 of 80 steps: 2.5, rounded
  EXPECT_EQ(job.run(), "runs/small/rope/lr-0.001-seed-1-steps-20");
  EXPECT_EQ(final_jobs(recipe, 0, 0.001).front().recipe.train.warmup_steps, 10);
}

TEST(Plan, CountsTheJobsOfAllMixers) {
  EXPECT_EQ(count_jobs(read(kTwoMixers)), 2 * (3 + 2));
}

}  // namespace
}  // namespace tamis::shootout
