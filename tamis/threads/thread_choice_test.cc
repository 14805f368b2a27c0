#include "tamis/threads/thread_choice.h"

#include <gtest/gtest.h>

namespace tamis::threads {
namespace {

constexpr int64_t kMillisecond = 1'000'000;

/// A machine on which all threads of a team together, or the calling one alone, compute so much in a second.
struct Machine {
  double together, alone;
};

/// Regions of a millisecond, for `seconds`; returns the share of them that ran on the calling thread alone.
double share_alone(ThreadChoice& choice, int64_t& now, const Machine& machine, double seconds) {
  int alone = 0, regions = 0;
  for (const int64_t end = now + static_cast<int64_t>(seconds * 1e9); now < end; now += kMillisecond, ++regions) {
    const double speed = choice.alone() ? machine.alone : machine.together;
    alone += choice.alone() ? 1 : 0;
    if (choice.measures_next()) choice.measured(now, kMillisecond, static_cast<int64_t>(speed * kMillisecond));
  }
  return static_cast<double>(alone) / regions;
}

TEST(ThreadChoice, TriesNothingElseWhereMoreThanOneThreadComputes) {
  ThreadChoice choice;
  int64_t now = 0;
  EXPECT_EQ(share_alone(choice, now, {.together = 1.1, .alone = 1}, 10), 0);
}

TEST(ThreadChoice, ComputesAloneWhereThreadsWaitForEachOther) {
  ThreadChoice choice;
  int64_t now = 0;
  share_alone(choice, now, {.together = 0.5, .alone = 0.7}, 1);
  EXPECT_GT(share_alone(choice, now, {.together = 0.5, .alone = 0.7}, 20), 0.95);
}

TEST(ThreadChoice, SeldomTriesWhatIsSlower) {
  ThreadChoice choice;
  int64_t now = 0;
  EXPECT_LT(share_alone(choice, now, {.together = 0.8, .alone = 0.5}, 20), 0.05);
}

TEST(ThreadChoice, PrefersToComputeAloneWhereItIsNearlyAsFast) {
  ThreadChoice choice;
  int64_t now = 0;
  share_alone(choice, now, {.together = 0.6, .alone = 0.5}, 1);
  EXPECT_GT(share_alone(choice, now, {.together = 0.6, .alone = 0.5}, 20), 0.95);
}

TEST(ThreadChoice, ComputesTogetherAgainFourSecondsAfterTheLoadHasGone) {
  ThreadChoice choice;
  int64_t now = 0;
  share_alone(choice, now, {.together = 0.5, .alone = 0.7}, 20);
  share_alone(choice, now, {.together = 1.8, .alone = 1}, 4.5);
  EXPECT_EQ(share_alone(choice, now, {.together = 1.8, .alone = 1}, 10), 0);
}

}  // namespace
}  // namespace tamis::threads
