#include "tamis/bench/network.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tamis/distributed/testing.h"

namespace tamis::bench {
namespace {

using ::testing::HasSubstr;

TEST(Network, AllProcessesGetTheSameSpeed) {
  constexpr int64_t kSize = 3;
  std::vector<NetworkSpeed> all(kSize);
  distributed::testing::in_processes(kSize, [&](distributed::ProcessGroup& group) {
    all[group.rank()] = measure_network({.megabytes = 3, .measure = {.repeat = 3, .seconds = 0}}, group);
    EXPECT_EQ(group.bytes_sent(), 2 * 4 + 5 * (all[group.rank()].exchanged + 2 * 4));  // 3 measured, 2 before
  });
  for (const NetworkSpeed& speed : all) {
    EXPECT_EQ(speed.processes, kSize);
    EXPECT_EQ(speed.exchanged, 2'000'000);
    EXPECT_GT(speed.exchange_seconds, 0);
    EXPECT_GT(speed.latency, 0);
    EXPECT_EQ(to_json(speed), to_json(all[0]));
  }
}

TEST(Network, SaysWhatPlanHasToKnow) {
  const NetworkSpeed speed{
      .processes = 4, .launcher = "srun", .exchanged = 12'000'000, .exchange_seconds = 0.0096, .latency = 41.7e-6};
  EXPECT_DOUBLE_EQ(speed.bandwidth(), 1.25e9);
  EXPECT_THAT(to_text(speed), HasSubstr("4 processes, started by srun,"));
  EXPECT_THAT(to_text(speed), HasSubstr("tamis plan RECIPE --processes 4 --bandwidth 10 --latency 42\n"));
}

}  // namespace
}  // namespace tamis::bench
