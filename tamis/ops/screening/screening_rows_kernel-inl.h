// Eq. (5)-(7) of screening: rows of queries, keys and values are loaded, normalised, rotated and, for keys, transposed.
// Included once per instruction set.

#include "tamis/ops/screening/screening_kernel.h"

#if defined(TAMIS_OPS_SCREENING_ROWS_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_OPS_SCREENING_ROWS_KERNEL_INL_H_
#undef TAMIS_OPS_SCREENING_ROWS_KERNEL_INL_H_
#else
#define TAMIS_OPS_SCREENING_ROWS_KERNEL_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "tamis/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Eq. (6): the first two numbers of a padded row become (x0 cos - x1 sin, x0 sin + x1 cos). A whole vector is written,
/// as the next load of a vector would stall on two separate numbers.
template <typename Real>
HWY_INLINE void Turn(Real* x, Real cosine, Real sine) {
  const LaneTag<Real> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  if constexpr (kWidth == 1) {
    const Real x0 = x[0], x1 = x[1];
    x[0] = x0 * cosine - x1 * sine;
    x[1] = x0 * sine + x1 * cosine;
  } else {
    const auto row = hn::LoadU(d, x);
    const auto sines = hn::OddEven(hn::Set(d, sine), hn::Set(d, -sine));
    const auto turned = hn::MulAdd(hn::Reverse2(d, row), sines, hn::Mul(row, hn::Set(d, cosine)));
    hn::StoreU(hn::IfThenElse(hn::FirstN(d, 2), turned, row), d, x);
  }
}

/// The rotations of consecutive positions: cos and sin of position * step, computed in float64 from the exact position.
/// The library computes them at every 16th position and the head's table of turns leads to the others, so that they
/// depend on the position alone.
template <typename Real>
class Rotations {
 public:
  explicit Rotations(const ScreeningHead<Real>& head) : head_(head) {}

  /// Computes those of [first, last), at most kBlockQueries positions, if they are missing.
  HWY_INLINE void cover(int64_t first, int64_t last) {
    if (head_.mipe_step == 0 || (first >= first_ && last <= last_)) return;
    first_ = first / kTileKeys * kTileKeys;
    const WideTag d;
    for (last_ = first_; last_ < last; last_ += kTileKeys) {
      const double angle = static_cast<double>(last_) * head_.mipe_step;
      const auto cosine = hn::Set(d, std::cos(angle)), sine = hn::Set(d, std::sin(angle));
      for (int64_t i = 0; i < kTileKeys; i += hn::MaxLanes(d)) {
        const auto turn_cosine = hn::LoadU(d, head_.turns + i), turn_sine = hn::LoadU(d, head_.turns + kTileKeys + i);
        StoreWide(hn::NegMulAdd(sine, turn_sine, hn::Mul(cosine, turn_cosine)), cosine_ + last_ - first_ + i);
        StoreWide(hn::MulAdd(cosine, turn_sine, hn::Mul(sine, turn_cosine)), sine_ + last_ - first_ + i);
      }
    }
  }

  HWY_INLINE void rotate(int64_t position, Real* x) const {
    if (head_.mipe_step != 0) Turn(x, cosine_[position - first_], sine_[position - first_]);
  }

  HWY_INLINE void rotate_back(int64_t position, Real* x) const {
    if (head_.mipe_step != 0) Turn(x, cosine_[position - first_], -sine_[position - first_]);
  }

 private:
  const ScreeningHead<Real>& head_;
  int64_t first_ = 0, last_ = 0;  // positions that are covered
  HWY_ALIGN Real cosine_[kBlockQueries + 2 * kTileKeys];
  HWY_ALIGN Real sine_[kBlockQueries + 2 * kTileKeys];
};

/// Slots of consecutive positions, with one division for all.
class Slots {
 public:
  Slots(int64_t first, int64_t capacity) : first_(first), first_slot_(first % capacity), capacity_(capacity) {}
  int64_t operator()(int64_t position) const {
    const int64_t slot = first_slot_ + (position - first_);
    return slot < capacity_ ? slot : slot - capacity_;
  }

 private:
  int64_t first_, first_slot_, capacity_;
};

/// Slots of the 64 keys of a panel: adjacent, continued at the beginning of the ring after its end.
class PanelSlots {
 public:
  PanelSlots(const Slots& slots, int64_t panel, int64_t capacity)
      : first_(slots(panel)), wrapped_(first_ - capacity), until_(capacity - first_) {}
  HWY_INLINE int64_t operator()(int64_t l) const { return l + (l < until_ ? first_ : wrapped_); }
  /// Whether slot l is l slots after slot 0.
  HWY_INLINE bool adjacent() const { return until_ >= kPanelKeys; }

 private:
  int64_t first_, wrapped_, until_;
};

/// Loads the values of the keys key(0), ..., key(count - 1) into the ring, normalised.
template <typename Real, typename KeyOf>
HWY_INLINE void StoreValues(const ScreeningPass<Real>& pass, int64_t count, const KeyOf& key, const Slots& slots) {
  const KeyRing<Real>& ring = pass.ring;
  const int64_t V = pass.head.value_dim, width = padded(V);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = slots(key(i));
    LoadRow(pass.v, key(i) - pass.key_origin, V, ring.values + slot * width);
    ring.ready[slot] = 1;
  }
  NormalizeRows(
      count, width, [&](int64_t i) HWY_ATTR { return ring.values + slots(key(i)) * width; },
      [&](int64_t i, double norm) HWY_ATTR {
        if (ring.value_norm != nullptr) ring.value_norm[slots(key(i))] = norm;
      });
}

/// Rows [first, first + count) of queries or keys, normalised and rotated, one after the other.
template <typename Real, typename Keep>
HWY_INLINE void LoadUnitRows(const ScreeningPass<Real>& pass, const Rows& rows, int64_t origin, int64_t first,
                             int64_t count, Rotations<Real>& rotations, Real* HWY_RESTRICT unit, const Keep& keep) {
  const int64_t K = pass.head.key_dim, width = padded(K);
  rotations.cover(first, first + count);
  for (int64_t i = 0; i < count; ++i) LoadRow(rows, first + i - origin, K, unit + i * width);
  NormalizeRows(
      count, width, [&](int64_t i) HWY_ATTR { return unit + i * width; }, keep);
  for (int64_t i = 0; i < count; ++i) rotations.rotate(first + i, unit + i * width);
}

/// Numbers of every row that Transpose moves in one step.
template <typename Real>
inline constexpr int64_t kTransposedAtOnce = std::max<int64_t>(hn::MaxLanes(LaneTag<Real>()) / 4, 1);

/// 16 rows of K numbers (padded, one after the other) into a tile, [K][16]; K is a multiple of kTransposedAtOnce.
template <typename Real>
HWY_INLINE void Transpose(const Real* HWY_RESTRICT rows, int64_t K, Real* HWY_RESTRICT tile) {
  // Two rounds that interleave four rows, or four quarters of a result, number by number.
  const LaneTag<Real> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  const int64_t width = padded(K);
  HWY_ALIGN Real quarters[4][4 * kWidth];  // of row i + 4 j, number x: quarters[i][4 x + j]
  for (int64_t first = 0; first < K; first += kWidth) {
    for (int64_t i = 0; i < 4; ++i) {
      const Real* HWY_RESTRICT row = rows + i * width + first;
      hn::StoreInterleaved4(hn::LoadU(d, row), hn::LoadU(d, row + 4 * width), hn::LoadU(d, row + 8 * width),
                            hn::LoadU(d, row + 12 * width), d, quarters[i]);
    }
    for (int64_t x = 0; x < 4 && first * 4 + x * kWidth < 4 * K; ++x) {
      hn::StoreInterleaved4(hn::LoadU(d, quarters[0] + x * kWidth), hn::LoadU(d, quarters[1] + x * kWidth),
                            hn::LoadU(d, quarters[2] + x * kWidth), hn::LoadU(d, quarters[3] + x * kWidth), d,
                            tile + first * kTileKeys + 4 * x * kWidth);
    }
  }
}

/// Writes one key into a lane of a tile; lane 0 clears the tile first.
template <typename Real>
HWY_INLINE void StoreKey(const Real* HWY_RESTRICT row, int64_t K, int64_t lane, Real* HWY_RESTRICT tile) {
  if (lane == 0) std::fill(tile, tile + K * kTileKeys, Real{0});
  for (int64_t d = 0; d < K; ++d) tile[d * kTileKeys + lane] = row[d];
}

/// Loads the keys [first, last) into the ring: normalised, rotated, transposed. scratch: kBlockQueries rows.
template <typename Real>
HWY_INLINE void PackKeys(const ScreeningPass<Real>& pass, int64_t first, int64_t last, Rotations<Real>& rotations,
                         Real* HWY_RESTRICT scratch) {
  const KeyRing<Real>& ring = pass.ring;
  const int64_t K = pass.head.key_dim, width = padded(K);
  for (; first < last; first += kBlockQueries) {
    const int64_t count = std::min(last - first, kBlockQueries);
    const Slots slots(first, ring.capacity);
    LoadUnitRows(pass, pass.k, pass.key_origin, first, count, rotations, scratch, [&](int64_t i, double norm) HWY_ATTR {
      if (ring.rows != nullptr) ring.key_norm[slots(first + i)] = norm;
    });
    for (int64_t i = 0; i < count;) {
      const int64_t slot = slots(first + i), lane = slot % kTileKeys;
      const int64_t keys = std::min(count - i, kTileKeys - lane);  // that go to this tile
      const Real* HWY_RESTRICT rows = scratch + i * width;
      Real* HWY_RESTRICT tile = ring.tiles + (slot - lane) * K;
      if (keys == kTileKeys && K % kTransposedAtOnce<Real> == 0) {
        Transpose(rows, K, tile);
      } else {
        for (int64_t x = 0; x < keys; ++x) StoreKey(rows + x * width, K, lane + x, tile);
      }
      if (ring.rows != nullptr) CopyRow(rows, keys * width, ring.rows + slot * width);
      std::fill(ring.ready + slot, ring.ready + slot + keys, uint8_t{0});
      i += keys;
    }
    if (pass.store_all_values) {
      StoreValues(
          pass, count, [&](int64_t i) HWY_ATTR { return first + i; }, slots);
    }
  }
}

/// Queries [first, first + count) as normalised and rotated rows, followed by zeros up to kBlockQueries. `norm`, unless
/// null, receives the norms.
template <typename Real>
HWY_INLINE void LoadQueries(const ScreeningPass<Real>& pass, int64_t first, int64_t count, Rotations<Real>& rotations,
                            Real* HWY_RESTRICT q, double* HWY_RESTRICT norm = nullptr) {
  const int64_t width = padded(pass.head.key_dim);
  LoadUnitRows(pass, pass.q, pass.query_origin, first, count, rotations, q,
               [&](int64_t i, double denominator) HWY_ATTR {
                 if (norm != nullptr) norm[i] = denominator;
               });
  std::fill(q + count * width, q + kBlockQueries * width, Real{0});
}

/// Prefetches the rows that the next block reads first.
template <typename Real>
HWY_INLINE void PrefetchNextBlock(const ScreeningPass<Real>& pass, int64_t first, int64_t count) {
  const int64_t next = first + count, last = std::min(next + pass.block, pass.last);
  PrefetchRows<Access::kRead>(pass.k, next - pass.key_origin, last - pass.key_origin, pass.head.key_dim);
  PrefetchRows<Access::kRead>(pass.v, next - pass.key_origin, last - pass.key_origin, pass.head.value_dim);
  PrefetchRows<Access::kRead>(pass.q, next - pass.query_origin, last - pass.query_origin, pass.head.key_dim);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set
