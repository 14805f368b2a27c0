#include "tamis/data/permutation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <vector>

namespace tamis::data {
namespace {

TEST(Permutation, HasEveryElementOnce) {
  std::vector<uint64_t> sizes = {1000, 1023, 1024, 1025, 4097, 65'537, 300'000};
  for (uint64_t size = 1; size <= 130; ++size) sizes.push_back(size);
  for (const uint64_t size : sizes) {
    for (const uint64_t key : {0u, 1u, 77u}) {
      const Permutation permutation(size, key);
      std::vector<bool> seen(size);
      for (uint64_t i = 0; i < size; ++i) {
        const uint64_t element = permutation(i);
        ASSERT_LT(element, size);
        ASSERT_FALSE(seen[element]) << size << ", key " << key << ": " << element << " comes twice";
        seen[element] = true;
      }
    }
  }
}

TEST(Permutation, KeysGiveOtherOrders) {
  std::set<std::vector<uint64_t>> orders;
  for (uint64_t key = 0; key < 50; ++key) {
    const Permutation permutation(40, key);
    std::vector<uint64_t> order;
    for (uint64_t i = 0; i < 40; ++i) order.push_back(permutation(i));
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 50u);
}

/// Chi-squared of the element at one position over many keys, and of the difference of neighbours over positions.
TEST(Permutation, LooksRandom) {
  for (const uint64_t size : {5u, 10u, 37u, 64u, 65u, 100u, 130u, 1000u}) {
    constexpr int kKeys = 20'000;
    std::vector<double> first(size), steps(size);
    for (int key = 0; key < kKeys; ++key) {
      const Permutation permutation(size, key);
      first[permutation(size / 2)] += 1;
      steps[(permutation(1) + size - permutation(0)) % size] += 1;
    }
    const auto chi = [&](const std::vector<double>& counts, double cells, size_t from) {
      const double expected = kKeys / cells;
      double sum = 0;
      for (size_t i = from; i < size; ++i) sum += (counts[i] - expected) * (counts[i] - expected) / expected;
      return sum;
    };
    const double most = static_cast<double>(size) + 6 * std::sqrt(2.0 * static_cast<double>(size));
    EXPECT_LT(chi(first, static_cast<double>(size), 0), most) << size;
    EXPECT_EQ(steps[0], 0);
    EXPECT_LT(chi(steps, static_cast<double>(size) - 1, 1), most) << size;
  }
}

TEST(Permutation, LargeSizes) {
  for (const uint64_t size : {(uint64_t{1} << 40) + 1, uint64_t{1} << 62}) {
    const Permutation permutation(size, 3);
    std::set<uint64_t> seen;
    for (uint64_t i = 0; i < 1000; ++i) seen.insert(permutation(size - 1 - i));
    EXPECT_EQ(seen.size(), 1000u);
    EXPECT_LT(*seen.rbegin(), size);
  }
}

}  // namespace
}  // namespace tamis::data
