#include "tamis/base/cores.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

namespace tamis {
namespace {

TEST(Cores, IsAtLeastOneAndAtMostTheNumberOfTheMachine) {
  EXPECT_GE(usable_cores(), 1);
  EXPECT_LE(usable_cores(), std::thread::hardware_concurrency());
}

TEST(Cores, IsOneForAThreadWithAffinityToOneCore) {
  std::thread bound([] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(sched_getcpu(), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(usable_cores(), 1);
  });
  bound.join();
}

}  // namespace
}  // namespace tamis
