#include "tamis/ops/screening/screening_heads.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <new>
#include <numbers>

#include "tamis/ops/screening/window.h"

namespace tamis::ops {

double expanded_window(double s_w, std::optional<double> expand_beyond) {
  const double window = window_tokens(s_w);
  return expand_beyond && window > *expand_beyond ? std::numeric_limits<double>::infinity() : window;
}

template <typename Real>
PreparedHead<Real> prepare_head(double s_w, double s_r, int64_t key_dim, int64_t value_dim, int64_t keys,
                                double mipe_threshold, std::optional<double> expand_beyond, bool mipe, bool tanh_norm,
                                bool derivative) {
  constexpr double kPi = std::numbers::pi;
  const double window = expanded_window(s_w, expand_beyond);
  PreparedHead<Real> head;
  auto& constants = head.constants;
  constants.key_dim = key_dim;
  constants.value_dim = value_dim;
  constants.span = std::max<int64_t>(visible_span(window, keys), 1);
  const double one_minus_r = acceptance_width(-s_r),
               slack = 8 * static_cast<double>(std::numeric_limits<Real>::epsilon());
  constants.inverse_r = static_cast<Real>(std::min(1 + std::exp(-s_r), 1e30));
  constants.one_minus_r = static_cast<Real>(one_minus_r);
  constants.surely_rejected = static_cast<Real>(one_minus_r - slack);
  constants.tanh_norm = tanh_norm;
  if (mipe && window < mipe_threshold) {
    const double x = kPi * window / mipe_threshold;
    const double phi = (std::cos(x) + 1) / 2;                          // (7)
    const double phi_slope = -std::sin(x) / 2 * kPi / mipe_threshold;  // d phi / d w
    constants.mipe_step = kPi * phi / window;                          // (6)
    head.turns.resize(2 * kernels::kTileKeys);
    for (int64_t i = 0; i < kernels::kTileKeys; ++i) {
      head.turns[i] = std::cos(static_cast<double>(i) * constants.mipe_step);
      head.turns[kernels::kTileKeys + i] = std::sin(static_cast<double>(i) * constants.mipe_step);
    }
    constants.turns = head.turns.data();
    head.mipe_step_slope = kPi * (phi_slope - phi / window) / window * (window - 1);  // dw/ds_w = w - 1
  }
  if (std::isfinite(window)) {
    const size_t size = static_cast<size_t>(constants.span + 2 * kernels::kMaskPadding);
    head.softmask.resize(size);
    if (derivative) head.slope.resize(size);
    kernels::fill_softmask(window, constants.span, head.softmask.data(), derivative ? head.slope.data() : nullptr);
    constants.softmask = head.softmask.data();
    if (derivative) constants.softmask_slope = head.slope.data();
  }
  return head;
}

template PreparedHead<float> prepare_head(double, double, int64_t, int64_t, int64_t, double, std::optional<double>,
                                          bool, bool, bool);
template PreparedHead<double> prepare_head(double, double, int64_t, int64_t, int64_t, double, std::optional<double>,
                                           bool, bool, bool);

int64_t block_for_span(int64_t span) {
  return span <= 64 ? kernels::kBlockQueries / 2 : kernels::kBlockQueries;
}

namespace {

/// Keys of whole chunks: what an index over `keys` keys can hold.
int64_t index_capacity(int64_t keys) {
  return keys / kernels::kSmallestChunk * kernels::kSmallestChunk;
}

template <typename Real>
void take_index_scratch(kernels::KeyIndex<Real>& index, int64_t key_dim, ScratchMemory<Real>& memory) {
  const int64_t chunk = std::min(index.capacity, kernels::kIndexWindow);
  using Verdicts = kernels::IndexVerdicts<Real>;
  auto* bytes = memory.template take<std::byte>(static_cast<int64_t>(sizeof(Verdicts)));
  index.verdicts = new (bytes) Verdicts;  // trivially destructible; only its bit sets are written here
  index.order = memory.template take<uint64_t>(chunk);
  index.rows = memory.take(chunk * kernels::padded(key_dim));
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
