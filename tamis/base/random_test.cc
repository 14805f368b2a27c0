#include "tamis/base/random.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <vector>

namespace tamis {
namespace {

TEST(Random, KeysDefineIndependentStreams) {
  Random a{1, 2, 3}, same{1, 2, 3};
  for (int i = 0; i < 100; ++i) EXPECT_EQ(a.next(), same.next());
  std::set<uint64_t> firsts;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    for (uint64_t step = 0; step < 20; ++step) firsts.insert(Random({seed, step}).next());
  }
  EXPECT_EQ(firsts.size(), 400);
  EXPECT_NE(Random({1, 2}).next(), Random({2, 1}).next());
}

TEST(Random, BelowIsUniform) {
  Random random{7};
  std::array<int, 10> counts{};
  constexpr int kDraws = 100'000;
  for (int i = 0; i < kDraws; ++i) ++counts[random.below(counts.size())];
  double chi_squared = 0;
  for (const int count : counts) chi_squared += (count - kDraws / 10.0) * (count - kDraws / 10.0) / (kDraws / 10.0);
  EXPECT_LT(chi_squared, 27.9);  // 9 degrees of freedom, 1 in 1,000
}

TEST(Random, NormalHasMeanZeroAndVarianceOne) {
  Random random{8};
  double sum = 0, squares = 0;
  constexpr int kDraws = 100'000;
  for (int i = 0; i < kDraws; ++i) {
    const double x = random.normal();
    ASSERT_TRUE(std::isfinite(x));
    sum += x;
    squares += x * x;
  }
  EXPECT_NEAR(sum / kDraws, 0, 0.02);
  EXPECT_NEAR(squares / kDraws, 1, 0.03);
}

TEST(Random, ShuffleKeepsTheItems) {
  std::vector<int> items(50), sorted;
  for (int i = 0; i < 50; ++i) items[i] = i;
  Random random{9};
  random.shuffle(std::span<int>(items));
  EXPECT_FALSE(std::is_sorted(items.begin(), items.end()));
  sorted = items;
  std::sort(sorted.begin(), sorted.end());
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sorted[i], i);
}

}  // namespace
}  // namespace tamis
