// Construction of the index of a head's older keys, and the decision whether it saves time.

#include "tamis/ops/screening/screening_index_kernel.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "tamis/ops/screening/screening_kernel.h"

namespace tamis::kernels {
namespace {

/// An unsigned integer in the order of x. A NaN has a defined place too.
uint32_t ordered_bits(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits & 0x8000'0000u) != 0 ? ~bits : bits | 0x8000'0000u;
}

/// Sorts the keys of a bucket and makes the nodes above them.
template <typename Real>
class BucketBuilder {
 public:
  BucketBuilder(const ScreeningPass<Real>& pass, int64_t first, int64_t size)
      : head_(pass.head), index_(*pass.index), first_(first), size_(size), width_(padded(pass.head.key_dim)) {
    const int64_t K = head_.key_dim;
    for (int64_t r = 0; r < size; ++r) {
      const int64_t slot = (first + r) % pass.ring.capacity;
      const Real* tile = pass.ring.tiles + slot / kTileKeys * K * kTileKeys + slot % kTileKeys;
      Real* row = index_.rows + r * width_;
      for (int64_t d = 0; d < K; ++d) row[d] = tile[d * kTileKeys];
      std::fill(row + K, row + width_, Real{0});
      index_.order[r] = static_cast<uint64_t>(r);
    }
  }

  void build() {
    split(0, size_);
    store_keys();
    for (int level = 0; level < kIndexLevels; ++level) {
      const int64_t keys = index_node_keys(level);
      // A node that is not full yet covers the keys that it has.
      for (int64_t slot = first_ / keys * keys; slot < first_ + size_; slot += keys) make_node(level, slot / keys);
    }
  }

 private:
  const Real* row(int64_t place) const { return index_.rows + static_cast<uint32_t>(index_.order[place]) * width_; }

  /// Halves keys [begin, begin + count) at the median of the component that varies most, down to tiles of 16.
  void split(int64_t begin, int64_t count) {
    if (count <= kTileKeys) return;
    const int64_t component = widest_component(begin, count);
    uint64_t* order = index_.order + begin;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t r = static_cast<uint32_t>(order[i]);
      order[i] = uint64_t{ordered_bits(static_cast<float>(index_.rows[r * width_ + component]))} << 32 | r;
    }
    std::nth_element(order, order + count / 2, order + count);
    split(begin, count / 2);
    split(begin + count / 2, count / 2);
  }

  int64_t widest_component(int64_t begin, int64_t count) const {
    Real sum[kMostComponents] = {}, squares[kMostComponents] = {};
    const int64_t components = std::min(width_, kMostComponents);
    for (int64_t i = begin; i < begin + count; ++i) {
      const Real* x = row(i);
      for (int64_t d = 0; d < components; ++d) {
        sum[d] += x[d];
        squares[d] += x[d] * x[d];
      }
    }
    int64_t widest = 0;
    const auto spread = [&](int64_t d) { return squares[d] * static_cast<Real>(count) - sum[d] * sum[d]; };
    for (int64_t d = 1; d < std::min(head_.key_dim, components); ++d) {
      if (spread(d) > spread(widest)) widest = d;
    }
    return widest;
  }

  void store_keys() {
    const int64_t K = head_.key_dim;
    for (int64_t place = 0; place < size_; ++place) {
      const int64_t slot = first_ + place;
      Real* tile = index_.tiles + slot / kTileKeys * K * kTileKeys + slot % kTileKeys;
      const Real* x = row(place);
      for (int64_t d = 0; d < K; ++d) tile[d * kTileKeys] = x[d];
      const auto key = first_ + static_cast<int64_t>(static_cast<uint32_t>(index_.order[place]));
      index_.position[slot] = static_cast<uint16_t>(key % kIndexSegment);
    }
  }

  /// The cone around the keys of a node: its axis is their mean, its angle phi the largest between axis and key. If
  /// cos(theta) is a similarity that is certainly rejected, a unit query at an angle of at least phi + theta rejects
  /// every key.
  void make_node(int level, int64_t node) {
    const int64_t K = head_.key_dim, keys = index_node_keys(level);
    const int64_t begin = node * keys, end = std::min(begin + keys, first_ + size_);
    Real* tile = index_.centres[level] + node / kIndexFan * K * kIndexFan;
    if (node % kIndexFan == 0) {
      std::fill(tile, tile + K * kIndexFan, Real{0});
      std::fill_n(index_.limits[level] + node, kIndexFan, Real{0});
    }
    double axis[kMostComponents];
    Real& limit = index_.limits[level][node];
    limit = -std::numeric_limits<Real>::infinity();
    if (K > kMostComponents) return;
    std::fill(axis, axis + K, 0.0);
    const auto component = [&](int64_t slot, int64_t d) {
      return static_cast<double>(index_.tiles[(slot / kTileKeys * K + d) * kTileKeys + slot % kTileKeys]);
    };
    for (int64_t slot = begin; slot < end; ++slot) {
      for (int64_t d = 0; d < K; ++d) axis[d] += component(slot, d);
    }
    double length = 0;
    for (int64_t d = 0; d < K; ++d) length += axis[d] * axis[d];
    length = std::sqrt(length);
    if (!(length > 1e-6)) return;  // also if a key is NaN
    for (int64_t d = 0; d < K; ++d) {
      tile[d * kIndexFan + node % kIndexFan] = static_cast<Real>(axis[d] / length);
      axis[d] = tile[d * kIndexFan + node % kIndexFan];  // as rounded
    }
    double axis_squared = 0;
    for (int64_t d = 0; d < K; ++d) axis_squared += axis[d] * axis[d];
    double least_cosine = 1;
    for (int64_t slot = begin; slot < end; ++slot) {
      double dot = 0, squared = 0;
      for (int64_t d = 0; d < K; ++d) {
        const double x = component(slot, d);
        dot += x * axis[d];
        squared += x * x;
      }
      if (squared == 0) continue;  // a zero key's similarity is 0
      least_cosine = std::min(least_cosine, dot / std::sqrt(squared * axis_squared));
    }
    limit = limit_of(least_cosine);
  }

  Real limit_of(double least_cosine) const {
    constexpr double kBuildError = 1e-13;  // of the cosine above
    const double slack =
        static_cast<double>(head_.key_dim + 16) * static_cast<double>(std::numeric_limits<Real>::epsilon());
    const double phi = least_cosine - kBuildError, theta = static_cast<double>(head_.surely_rejected) - slack;
    // Never skipped: phi + theta >= pi, a key of length 0 may be accepted, or something is NaN.
    if (!(theta > 0 && phi > -theta)) return -std::numeric_limits<Real>::infinity();
    const double limit = phi * theta - std::sqrt((1 - phi * phi) * (1 - theta * theta));
    return static_cast<Real>(limit - slack);
  }

  static constexpr int64_t kMostComponents = 64;
  const ScreeningHead<Real>& head_;
  KeyIndex<Real>& index_;
  int64_t first_, size_, width_;
};

constexpr int64_t kFirstTrial = 2 * kSmallestBucket;  // keys; with fewer a pass without the index is as fast

}  // namespace

int64_t index_nodes(int64_t capacity, int level) {
  const int64_t keys = index_node_keys(level);
  return padded((capacity + keys - 1) / keys);
}

template <typename Real>
int64_t advance_index(const ScreeningPass<Real>& pass, int64_t first) {
  KeyIndex<Real>& index = *pass.index;
  if (index.skipping == Skipping::kNever) return 0;
  const bool adaptive = index.skipping == Skipping::kAdaptive;
  if (adaptive && first < std::max(index.resume, kFirstTrial)) return 0;
  int64_t goal = first;
  if (adaptive && index.trial) {
    // An eighth of the keys shows whether the index saves time.
    goal = index.indexed;
    for (const int64_t size : {kIndexBuckets[2], kIndexBuckets[1], kIndexBuckets[0]}) {
      if (index.indexed == 0 && (size == kSmallestBucket || size <= first / 8)) goal = size;
    }
  }
  for (bool grew = true; grew;) {
    grew = false;
    for (const int64_t size : kIndexBuckets) {
      const int64_t start = index.indexed / size * size;
      if (start + size > goal || grew) continue;
      BucketBuilder<Real>(pass, start, size).build();
      index.indexed = start + size;
      grew = true;
    }
  }
  return index.indexed;
}

template <typename Real>
void decide_skipping(KeyIndex<Real>& index, int64_t next_query) {
  constexpr int64_t kLeastTiles = 64 * kSmallestBucket / kTileKeys;  // that a decision is based on
  constexpr double kWorthwhile = 0.75;                               // of the cost without the index
  if (index.replaced < static_cast<double>(kLeastTiles)) return;
  if (index.skipping == Skipping::kAdaptive) {
    index.trial = index.cost > kWorthwhile * index.replaced;
    if (index.trial) {
      index.indexed = 0;
      index.resume = 4 * next_query;
    }
  }
  index.replaced = index.cost = 0;
}

template int64_t advance_index(const ScreeningPass<float>&, int64_t);
template int64_t advance_index(const ScreeningPass<double>&, int64_t);
template void decide_skipping(KeyIndex<float>&, int64_t);
template void decide_skipping(KeyIndex<double>&, int64_t);

}  // namespace tamis::kernels
