#pragma once

#include <array>
#include <cstdint>

namespace tamis::data {

/// A pseudorandom permutation of 0 .. size - 1 that is evaluated at single positions: a Feistel network on the smallest
/// number of bits that holds `size`, applied again while the result is not below `size` (cycle walking; Black and
/// Rogaway, "Ciphers with Arbitrary Finite Domains", 2002). Constant memory; fewer than two networks on average. Up to
/// 64 elements, where networks of few bits favour some orders, it is a shuffled table.
class Permutation {
 public:
  /// `size` from 1 to 2^62; each key gives another order.
  Permutation(uint64_t size, uint64_t key);

  /// The element at `position`, which must be below the size. Every element is at exactly one position.
  uint64_t operator()(uint64_t position) const;

 private:
  static constexpr int kRounds = 8;

  static constexpr uint64_t kMostInTable = 64;

  uint64_t network(uint64_t value) const;

  uint64_t size_;
  int low_bits_, high_bits_;
  uint64_t keys_[kRounds] = {};
  std::array<uint8_t, kMostInTable> table_ = {};
};

}  // namespace tamis::data
