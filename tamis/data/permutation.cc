#include "tamis/data/permutation.h"

#include <bit>
#include <numeric>
#include <span>

#include "tamis/base/random.h"
#include "tamis/data/streams.h"

namespace tamis::data {

Permutation::Permutation(uint64_t size, uint64_t key) : size_(size) {
  const int bits = size > 1 ? static_cast<int>(std::bit_width(size - 1)) : 0;
  low_bits_ = (bits + 1) / 2;
  high_bits_ = bits - low_bits_;
  Random random({kPermutation, key, size});
  if (size <= kMostInTable) {
    std::iota(table_.begin(), table_.end(), uint8_t{0});
    random.shuffle(std::span(table_).first(size));
    return;
  }
  for (uint64_t& round_key : keys_) round_key = random.next();
}

/// Each round adds to one half a function of the other half, which the round leaves unchanged: it can be undone.
uint64_t Permutation::network(uint64_t value) const {
  const uint64_t low_mask = (uint64_t{1} << low_bits_) - 1;
  const uint64_t high_mask = (uint64_t{1} << high_bits_) - 1;
  uint64_t low = value & low_mask, high = value >> low_bits_;
  for (int round = 0; round < kRounds; round += 2) {
    high = (high + Random({keys_[round], low}).next()) & high_mask;
    low = (low + Random({keys_[round + 1], high}).next()) & low_mask;
  }
  return high << low_bits_ | low;
}

uint64_t Permutation::operator()(uint64_t position) const {
  if (size_ <= kMostInTable) return table_[position];
  uint64_t value = network(position);
  while (value >= size_) value = network(value);
  return value;
}

}  // namespace tamis::data
