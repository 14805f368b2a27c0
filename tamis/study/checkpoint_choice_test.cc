#include "tamis/study/checkpoint_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/base/testing.h"

namespace tamis::study {
namespace {

using ::testing::HasSubstr;

/// Scores at two depths.
eval::TaskResult scored(double first, double second) {
  eval::TaskResult result{.options = {}};
  result.cells = {{.length = 64, .depth = 0.1, .instances = 4, .score_sum = first},
                  {.length = 64, .depth = 0.9, .instances = 4, .score_sum = second}};
  return result;
}

TEST(CheckpointChoice, CountsAllDepths) {
  const Checkpoints checkpoints = {{2, "step-2"}, {4, "step-4"}, {6, "step-6"}};
  const auto choose = [&](const std::map<std::string, eval::TaskResult>& results) {
    return best_step(checkpoints, 64, [&](const std::filesystem::path& path) { return results.at(path.string()); });
  };
  EXPECT_EQ(choose({{"step-2", scored(1, 4)}, {"step-4", scored(3, 0)}, {"step-6", scored(2, 0)}}), 2);
  EXPECT_EQ(choose({{"step-2", scored(4, 0)}, {"step-4", scored(0, 4)}, {"step-6", scored(1, 1)}}), 4);
  EXPECT_EQ(choose({{"step-2", scored(0, 0)}, {"step-4", scored(0, 0)}, {"step-6", scored(0, 0)}}), 6);
}

TEST(CheckpointChoice, NeedsCheckpoints) {
  const tamis::testing::TemporaryDirectory run;
  const auto expect_none = [&] {
    const auto [code, text] = tamis::testing::error_of([&] { checkpoints_of(run.path()); });
    EXPECT_EQ(code, ExitCode::kInput);
    EXPECT_THAT(text, HasSubstr("holds no checkpoint to choose"));
  };
  expect_none();
  std::filesystem::create_directories(run.path() / "checkpoints" / "other");
  expect_none();
  for (const char* step : {"step-4", "step-12"}) std::filesystem::create_directory(run.path() / "checkpoints" / step);
  const Checkpoints checkpoints = checkpoints_of(run.path());
  ASSERT_EQ(checkpoints.size(), 2u);
  EXPECT_EQ(checkpoints.begin()->first, 12);
}

}  // namespace
}  // namespace tamis::study
