#include "tamis/ops/parallel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "tamis/ops/team.h"
#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

TEST(Parallel, EveryItemIsDoneOnce) {
  const testing::Threads threads(3);
  for (const int64_t items : {0, 1, 2, 3, 100}) {
    std::vector<std::atomic<int>> done(items);
    parallel_items(items, [&](int64_t item) { ++done[item]; });
    for (int64_t item = 0; item < items; ++item) EXPECT_EQ(done[item], 1) << item << " of " << items;
  }
}

TEST(Parallel, TheFirstFailureIsRethrown) {
  const testing::Threads threads(3);
  EXPECT_THROW(parallel_items(100,
                              [](int64_t item) {
                                if (item == 40) throw std::out_of_range("40");
                              }),
               std::out_of_range);
}

#if defined(__x86_64__)
TEST(Parallel, SubnormalNumbersAreZerosInItemsOnly) {
  const testing::Threads threads(3);
  const auto is_zero = [] {
    volatile float subnormal = 1e-39F;
    return subnormal * 0.5F == 0.0F;
  };
  std::atomic<int> zeros{0};
  const auto count = [&](int64_t) { zeros += is_zero(); };
  parallel_items(100, count);
  EXPECT_EQ(zeros, 100);
  serial_items(10, count);
  EXPECT_EQ(zeros, 110);
  parallel_team(3, [&](TeamWorker&) { zeros += is_zero(); });
  EXPECT_EQ(zeros, 113);
  EXPECT_FALSE(is_zero());
}
#endif

TEST(Parallel, ChunksCoverEverythingAndAreNotTooShort) {
  for (const int count : {1, 3}) {
    const testing::Threads threads(count);
    for (const int64_t size : {0, 1, 4, 5, 7, 14, 100}) {
      for (const int64_t least : {1, 3, 1000}) {
        std::vector<std::atomic<int>> done(size);
        std::atomic<int> chunks{0};
        parallel_chunks(size, least, [&](int64_t first, int64_t last) {
          ++chunks;
          EXPECT_GE(last - first, std::min(least, size));
          for (int64_t i = first; i < last; ++i) ++done[i];
        });
        EXPECT_EQ(chunks, size == 0 ? 0 : std::clamp<int64_t>(size / least, 1, count));
        for (int64_t i = 0; i < size; ++i) EXPECT_EQ(done[i], 1) << i << " of " << size;
      }
    }
  }
}

}  // namespace
}  // namespace tamis::ops
