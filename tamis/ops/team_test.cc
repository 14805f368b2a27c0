#include "tamis/ops/team.h"

#include <gtest/gtest.h>

#include <new>
#include <vector>

#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

constexpr int64_t kItems = 40;

int64_t items_of(int64_t slice, int64_t slices) {
  return kItems * slice / slices;
}

TEST(Team, EveryPhaseSeesAllOfTheOneBefore) {
  const testing::Threads threads(4);
  for (int repeat = 0; repeat < 100; ++repeat) {
    std::vector<int64_t> first(kItems, 0), second(kItems, 0);
    parallel_team(4, [&](TeamWorker& worker) {
      const auto of_slice = [](int64_t slice) { return items_of(slice, 4); };
      worker.phase(of_slice, [&](int64_t item) { first[item] += item; });
      worker.phase(of_slice, [&](int64_t item) {
        for (const int64_t number : first) second[item] += number;
      });
    });
    EXPECT_EQ(second, std::vector<int64_t>(kItems, kItems * (kItems - 1) / 2));
  }
}

/// A worker may run out of memory in the middle of a phase; the others must not wait for it forever.
TEST(Team, AnExceptionOfOneWorkerEndsAll) {
  const testing::Threads threads(4);
  for (const int64_t bad : {int64_t{0}, kItems / 2, kItems - 1}) {
    const auto team = [&] {
      parallel_team(4, [&](TeamWorker& worker) {
        for (int phase = 0; phase < 3; ++phase) {
          worker.phase([](int64_t slice) { return items_of(slice, 4); },
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
