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
    if (choice.begin_region()) choice.measured(now, kMillisecond, static_cast<int64_t>(speed * kMillisecond));
  }
  return static_cast<double>(alone) / regions;
}

TEST(ThreadChoice, TriesNothingElseWhereMoreThanOneThreadComputes) {
  ThreadChoice choice;
  int64_t now = 0;
  EXPECT_EQ(share_alone(choice, now, {.together = 1.1, .alone = 1}, 10), 0);
}

TEST(ThreadChoice, ComputesAloneWhereThatIsFasterOrNearlyAsFast) {
  for (const Machine busy : {Machine{0.5, 0.7}, Machine{0.6, 0.5}}) {
    ThreadChoice choice;
    int64_t now = 0;
    share_alone(choice, now, busy, 1);
    EXPECT_GT(share_alone(choice, now, busy, 20), 0.95) << busy.together << " and " << busy.alone;
  }
}

TEST(ThreadChoice, SeldomTriesWhatIsSlower) {
  ThreadChoice choice;
  int64_t now = 0;
  EXPECT_LT(share_alone(choice, now, {.together = 0.8, .alone = 0.5}, 20), 0.05);
}

TEST(ThreadChoice, ComputesTogetherAgainFourSecondsAfterTheLoadHasGone) {
  for (const Machine free : {Machine{1.8, 1}, Machine{1.2, 1}, Machine{1.5, 1.6}}) {
    ThreadChoice choice;
    int64_t now = 0;
    share_alone(choice, now, {.together = 0.5, .alone = 0.7}, 20);
    share_alone(choice, now, free, 4.5);
    EXPECT_EQ(share_alone(choice, now, free, 10), 0) << free.together << " and " << free.alone;
  }
}

TEST(ThreadChoice, DoesNotFallInStepWithAModelsRegions) {
  for (int period = 2; period <= 16; ++period) {
    for (int phase = 0; phase < period; ++phase) {
      ThreadChoice choice;
      int measured = 0;
      for (int region = 0; region < 1000 * period; ++region) {
        measured += choice.begin_region() && region % period == phase ? 1 : 0;
      }
      EXPECT_NEAR(measured, 250, 60) << period << " " << phase;
    }
  }
}

}  // namespace
}  // namespace tamis::threads
