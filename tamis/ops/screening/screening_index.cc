#include "tamis/ops/screening/screening_index.h"

#include <algorithm>
#include <cstddef>
#include <new>

#include "tamis/kernels/rows.h"

namespace tamis::ops {
namespace {

/// Keys of an index over `keys` keys: whole buckets.
int64_t index_capacity(int64_t keys) {
  return keys / kernels::kSmallestBucket * kernels::kSmallestBucket;
}

template <typename Real>
void take_index_scratch(kernels::KeyIndex<Real>& index, int64_t key_dim, ScratchMemory<Real>& memory) {
  const int64_t segment = std::min(index.capacity, kernels::kIndexSegment);
  using Segment = kernels::ScreenedSegment<Real>;
  auto* bytes = memory.template take<std::byte>(static_cast<int64_t>(sizeof(Segment)));
  index.screened = new (bytes) Segment;  // trivially destructible; only its bit sets are written here
  index.order = memory.template take<uint64_t>(segment);
  index.rows = memory.take(segment * kernels::padded(key_dim));
}

}  // namespace

template <typename Real>
kernels::KeyIndex<Real>* take_index(int64_t keys, int64_t key_dim, kernels::Skipping skipping,
                                    ScratchMemory<Real>& memory) {
  using Index = kernels::KeyIndex<Real>;
  auto& index = *new (memory.template take<std::byte>(static_cast<int64_t>(sizeof(Index)))) Index;
  index.capacity = index_capacity(keys);
  index.skipping = skipping;
  index.tiles = memory.take(index.capacity * key_dim);
  index.position = memory.template take<uint16_t>(index.capacity);
  for (int level = 0; level < kernels::kIndexLevels; ++level) {
    const int64_t nodes = kernels::index_nodes(index.capacity, level);
    index.centres[level] = memory.take(nodes * key_dim);
    index.limits[level] = memory.take(nodes);
  }
  take_index_scratch(index, key_dim, memory);
  return &index;
}

template kernels::KeyIndex<float>* take_index(int64_t, int64_t, kernels::Skipping, ScratchMemory<float>&);
template kernels::KeyIndex<double>* take_index(int64_t, int64_t, kernels::Skipping, ScratchMemory<double>&);

void StoredIndex::reserve(int64_t keys, int64_t key_dim) {
  const int64_t capacity = index_capacity(keys);
  key_dim_ = key_dim;
  if (capacity <= index_.capacity) return;
  const auto resize = [](auto& vector, int64_t size) {
    vector.reserve(static_cast<size_t>(size));  // exactly: resize alone may take twice as much
    vector.resize(static_cast<size_t>(size));
  };
  resize(tiles_, capacity * key_dim);
  resize(position_, capacity);
  for (int level = 0; level < kernels::kIndexLevels; ++level) {
    resize(centres_[level], kernels::index_nodes(capacity, level) * key_dim);
    resize(limits_[level], kernels::index_nodes(capacity, level));
  }
  index_.capacity = capacity;
}

int64_t StoredIndex::bytes_for(int64_t keys, int64_t key_dim) {
  const int64_t capacity = index_capacity(keys);
  int64_t numbers = capacity * key_dim;
  for (int level = 0; level < kernels::kIndexLevels; ++level) {
    numbers += kernels::index_nodes(capacity, level) * (key_dim + 1);
  }
  return numbers * static_cast<int64_t>(sizeof(float)) + capacity * static_cast<int64_t>(sizeof(uint16_t));
}

kernels::KeyIndex<float>* StoredIndex::bind(ScratchMemory<float>& memory) {
  if (index_.capacity == 0) return nullptr;
  index_.tiles = tiles_.data();
  index_.position = position_.data();
  for (int level = 0; level < kernels::kIndexLevels; ++level) {
    index_.centres[level] = centres_[level].data();
    index_.limits[level] = limits_[level].data();
  }
  take_index_scratch(index_, key_dim_, memory);
  return &index_;
}

}  // namespace tamis::ops
