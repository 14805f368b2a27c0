#include "tamis/bench/measure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>

namespace tamis::bench {
namespace {

using ::testing::ElementsAre;

TEST(Measure, SummarisesCalls) {
  const Measurement five = summarise({5, 1, 4, 2, 3});
  EXPECT_EQ(five.median, 3);
  EXPECT_EQ(five.minimum, 1);
  EXPECT_EQ(five.maximum, 5);
  EXPECT_EQ(five.lower_quartile, 2);
  EXPECT_EQ(five.upper_quartile, 4);
  EXPECT_EQ(five.calls, 5);
  EXPECT_DOUBLE_EQ(summarise({1, 2, 3, 10}).mean, 4);
  EXPECT_DOUBLE_EQ(five.spread(), 2.0 / 3);
  EXPECT_DOUBLE_EQ(summarise({1, 2, 3, 10}).median, 2.5);
  EXPECT_DOUBLE_EQ(summarise({1, 2, 3, 10}).upper_quartile, 4.75);
  const Measurement one = summarise({7});
  EXPECT_EQ(one.lower_quartile, 7);
  EXPECT_EQ(one.upper_quartile, 7);
}

TEST(Measure, WarmsUpThenCallsAsOftenAsAsked) {
  int prepared = 0, run = 0;
  const Work work = {.run =
                         [&] {
                           EXPECT_EQ(prepared, run + 1);
                           ++run;
                         },
                     .prepare = [&] { ++prepared; }};
  EXPECT_EQ(measure(work, {.repeat = 4, .seconds = 0}).calls, 4);
  EXPECT_EQ(run, 5);
}

TEST(Measure, GoesOnUntilTheTimeHasPassed) {
  const Measurement found = measure({.run = [] {}}, {.repeat = 1, .seconds = 1e-4});
  EXPECT_GT(found.calls, 1);
}

TEST(Measure, TakesTurns) {
  std::string order;
  const Work works[] = {{.run = [&] { order += 'a'; }}, {.run = [&] { order += 'b'; }}};
  const auto found = measure_interleaved(works, {.repeat = 3, .seconds = 0});
  EXPECT_EQ(order,
            "abab"
            "ababab")
      << "two warm-ups: the memory of the first one is trimmed for the second";
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].calls, 3);
}

TEST(Measure, CountsPageFaultsAndMemory) {
#if defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "ThreadSanitizer's shadow of the memory is counted too";
#endif
  constexpr size_t kBytes = 64 << 20;
  const auto touch = [] {
    // volatile: memory that is written and never read would be optimised away
    const std::unique_ptr<volatile char[]> block(new volatile char[kBytes]);
    for (size_t i = 0; i < kBytes; i += 4096) block[i] = 1;
  };
  const Measurement found = measure({.run = touch}, {.repeat = 2, .seconds = 0});
  EXPECT_GE(found.peak_bytes, int64_t{kBytes});
  EXPECT_NEAR(static_cast<double>(found.extra_bytes), kBytes, 16 << 20);
  EXPECT_GT(found.page_faults, 0) << "malloc gives a block of this size back";
}

}  // namespace
}  // namespace tamis::bench
