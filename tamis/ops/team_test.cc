#include "tamis/ops/team.h"

#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

constexpr int64_t kItems = 40;

int64_t items_of(int64_t share, int64_t shares) {
  return kItems * share / shares;
}

TEST(Team, EveryPhaseSeesAllOfTheOneBefore) {
  const testing::Threads threads(4);
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::vector<int64_t> first(kItems, 0), second(kItems, 0);
    parallel_team(4, [&](TeamMember& member) {
      const auto of_share = [](int64_t share) { return items_of(share, 4); };
      member.phase(of_share, [&](int64_t item) { first[item] += item; });
      member.phase(of_share, [&](int64_t item) {
        for (const int64_t number : first) second[item] += number;
      });
    });
    EXPECT_EQ(second, std::vector<int64_t>(kItems, kItems * (kItems - 1) / 2));
  }
}

/// Memory may be short in the middle of a phase: the others must not wait for ever.
TEST(Team, WhatAMemberThrowsEndsAllOfThem) {
  const testing::Threads threads(4);
  for (const int64_t bad : {int64_t{0}, kItems / 2, kItems - 1}) {
    const auto team = [&] {
      parallel_team(4, [&](TeamMember& member) {
        for (int phase = 0; phase < 3; ++phase) {
          member.phase([](int64_t share) { return items_of(share, 4); },
                       [&](int64_t item) {
                         if (phase == 1 && item == bad) throw std::bad_alloc();
                       });
        }
      });
    };
    EXPECT_THROW(team(), std::bad_alloc) << bad;
  }
}

}  // namespace
}  // namespace tamis::ops
