#pragma once

#include <cstdint>
#include <vector>

#include "tamis/ops/scratch.h"
#include "tamis/ops/screening/screening_index_kernel.h"

// The memory of an index of keys, which its kernels are given.

namespace tamis::ops {

/// The memory of an index that a decoding state keeps. It may grow; its contents stay.
class StoredIndex {
 public:
  /// Makes room for `keys` keys of `key_dim` numbers.
  void reserve(int64_t keys, int64_t key_dim);
  int64_t bytes() const { return bytes_for(index_.capacity, key_dim_); }
  /// Bytes of an index with room for `keys` keys.
  static int64_t bytes_for(int64_t keys, int64_t key_dim);
  /// The index with its addresses, and scratch memory from `memory`; null while it is empty.
  kernels::KeyIndex<float>* bind(ScratchMemory<float>& memory);

 private:
  int64_t key_dim_ = 0;
  kernels::KeyIndex<float> index_;
  std::vector<float> tiles_;
  std::vector<uint16_t> position_;
  std::vector<float> centres_[kernels::kIndexLevels], limits_[kernels::kIndexLevels];
};

/// An index for a pass over `keys` keys, all of it in `memory`.
template <typename Real>
kernels::KeyIndex<Real>* take_index(int64_t keys, int64_t key_dim, kernels::Skipping skipping,
                                    ScratchMemory<Real>& memory);

}  // namespace tamis::ops
