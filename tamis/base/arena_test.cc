#include "tamis/base/arena.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "tamis/base/memory.h"
#include "tamis/base/random.h"

namespace tamis {
namespace {

constexpr size_t kMega = size_t{1} << 20;

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

TEST(Arena, ReusesReleasedBlocks) {
  Arena arena(1024 * kMega);
  void* block = arena.allocate(100 * kMega);
  ASSERT_NE(block, nullptr);
  std::memset(block, 1, 100 * kMega);
  arena.release(block);
  const int64_t before = page_faults();
  void* again = arena.allocate(100 * kMega);
  std::memset(again, 2, 100 * kMega);
  EXPECT_EQ(again, block);
  EXPECT_LT(page_faults() - before, 16);
}

TEST(Arena, SplitsAndJoins) {
  Arena arena(64 * kMega);
  std::vector<void*> blocks;
  for (int i = 0; i < 4; ++i) blocks.push_back(arena.allocate(4 * kMega));
  for (const int i : {0, 2, 1}) arena.release(blocks[i]);
  EXPECT_EQ(arena.allocate(12 * kMega), blocks[0]);  // the three merged blocks
  EXPECT_EQ(arena.trim(), 0u);                       // nothing else is free
  arena.release(blocks[0]);
  EXPECT_EQ(arena.allocate(kMega), blocks[0]);
  EXPECT_EQ(arena.allocate(11 * kMega), static_cast<std::byte*>(blocks[0]) + kMega);  // the rest of the first block
}

TEST(Arena, GrowsTheHighestFreeBlock) {
  Arena arena(64 * kMega);
  void* low = arena.allocate(8 * kMega);
  void* high = arena.allocate(20 * kMega);
  arena.release(high);
  EXPECT_EQ(arena.allocate(40 * kMega), high);  // 8 + 20 + 40 would not fit
  EXPECT_EQ(arena.allocate(40 * kMega), nullptr);
  EXPECT_EQ(arena.trim(), 0u);  // the block that did not fit left no free part
  arena.release(low);
}

TEST(Arena, BlocksNeverOverlap) {
  Arena arena(2048 * kMega);
  Random random({7});
  struct Block {
    unsigned char* data;
    size_t size;
    unsigned char mark;
  };
  std::vector<Block> live;
  for (int round = 0; round < 3000; ++round) {
    if (live.size() < 20 || random.next() % 2 == 0) {
      const size_t size = 1 + random.next() % (256 << 10);
      auto* data = static_cast<unsigned char*>(arena.allocate(size));
      ASSERT_NE(data, nullptr);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 4096, 0u);
      live.push_back({data, size, static_cast<unsigned char>(round)});
      std::memset(data, live.back().mark, size);
    } else {
      const size_t at = random.next() % live.size();
      const Block& block = live[at];
      ASSERT_TRUE(std::all_of(block.data, block.data + block.size, [&](unsigned char x) { return x == block.mark; }));
      arena.release(block.data);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

TEST(Arena, TrimGivesMemoryBack) {
  Arena arena(1024 * kMega);
  void* kept = arena.allocate(kMega);
  std::memset(kept, 3, kMega);
  void* block = arena.allocate(200 * kMega);
  std::memset(block, 1, 200 * kMega);
  arena.release(block);
  const int64_t before = resident_bytes();
  EXPECT_EQ(arena.trim(), 200 * kMega);
  EXPECT_LT(resident_bytes(), before - static_cast<int64_t>(190 * kMega));
  EXPECT_EQ(static_cast<unsigned char*>(kept)[kMega - 1], 3);
  EXPECT_EQ(arena.allocate(300 * kMega), block);
}

TEST(Arena, ReportsAnExhaustedAddressSpace) {
  Arena arena(16 * kMega);
  EXPECT_EQ(arena.allocate(64 * kMega), nullptr);
  EXPECT_NE(arena.allocate(8 * kMega), nullptr);
}

}  // namespace
}  // namespace tamis
