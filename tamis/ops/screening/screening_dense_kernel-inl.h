// The backward pass of dense panels, in which a block of queries accepts many pairs. Similarities and dh . v are
// computed for all pairs of a query and a wanted key, in registers, one query per lane. The sums over accepted pairs
// stay in registers until a key or a group of queries is complete. Included once per instruction set.

#include "tamis/ops/screening/screening_kernel.h"

#if defined(TAMIS_OPS_SCREENING_DENSE_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_OPS_SCREENING_DENSE_KERNEL_INL_H_
#undef TAMIS_OPS_SCREENING_DENSE_KERNEL_INL_H_
#else
#define TAMIS_OPS_SCREENING_DENSE_KERNEL_INL_H_
#endif

#include <algorithm>
#include <cmath>

#include "tamis/ops/screening/screening_pairs_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Whether the accepted pairs of a panel are processed together: if they are a large share of all pairs of a wanted key
/// and a query, as measured, and all keys are finite, as 0 times another key would be NaN.
template <typename Real>
HWY_INLINE bool IsDense(const ScreeningPass<Real>& pass, const PanelTally& tally, const PanelSlots& slots,
                        int64_t count) {
  constexpr int64_t kLeastPairs = 64, kPairsPerAccepted = 12;
  const int64_t pairs = std::popcount(tally.wanted) * padded(count);
  if (tally.accepted < kLeastPairs || tally.accepted * kPairsPerAccepted < pairs) return false;
  for (uint64_t keys = tally.wanted; keys != 0; keys &= keys - 1) {
    if (!std::isfinite(pass.ring.key_norm[slots(std::countr_zero(keys))])) return false;
  }
  return true;
}

/// Softmask (or its slope) of one key for the queries at `distance`, distance + 1, ...
template <typename Real>
HWY_INLINE hn::Vec<LaneTag<Real>> OfQueries(const ScreeningHead<Real>& head, const Real* table, int64_t distance) {
  const LaneTag<Real> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  if (table != nullptr) {
    return hn::Reverse(d, hn::LoadU(d, table + kMaskPadding + head.span - kWidth - distance));
  }
  const auto one = hn::Set(d, Real{1});
  if (distance >= 0) return one;
  return hn::IfThenZeroElse(hn::FirstN(d, static_cast<size_t>(std::min(-distance, kWidth))), one);
}

/// The dense panels of a block.
template <typename Real>
class DensePanels {
 public:
  DensePanels(ScreeningBackward<Real>& backward, const BackwardScratch<Real>& rows, int64_t first_query, int64_t count,
              ScalarSums& scalars)
      : backward_(backward),
        head_(backward.pass.head),
        rows_(rows),
        first_query_(first_query),
        count_(count),
        key_width_(padded(head_.key_dim)),
        value_width_(padded(head_.value_dim)),
        scalars_(scalars) {}

  /// Adds the pairs of the `wanted` keys of a panel to dq and to the sums of keys and scalars.
  HWY_NOINLINE void add(int64_t panel, uint64_t wanted, const PanelSlots& slots) {
    if (!prepared_) prepare();
    const KeyRing<Real>& ring = backward_.pass.ring;
    while (wanted != 0) {
      Keys keys;
      for (; wanted != 0 && keys.count < kTileKeys; wanted &= wanted - 1, ++keys.count) {
        const int64_t l = std::countr_zero(wanted), slot = slots(l);
        keys.position[keys.count] = panel + l;
        keys.row[keys.count] = ring.rows + slot * key_width_;
        keys.value[keys.count] = ring.values + slot * value_width_;
        keys.sums[keys.count] = backward_.sums + slot * (key_width_ + value_width_);
        keys.document[keys.count] = document_of(panel + l);
      }
      for (int64_t e = keys.count; e < kTileKeys; ++e) {  // fills the last group
        keys.position[e] = keys.position[0];
        keys.row[e] = keys.row[0];
        keys.value[e] = keys.value[0];
        keys.document[e] = -3;
      }
      for (int64_t e = 0; e < keys.count; e += kQueryGroup<Real>) compute_pairs(keys, e);
      add_to_keys(keys);
      add_to_queries(keys);
    }
  }

 private:
  /// Up to 16 wanted keys of a panel, and their pairs with the queries of the block.
  struct Keys {
    int64_t count = 0;
    int64_t position[kTileKeys];
    const Real *row[kTileKeys], *value[kTileKeys];
    Real* sums[kTileKeys];
    Real document[kTileKeys];
    uint64_t accepted[kTileKeys];  // bit i: query i
    HWY_ALIGN Real weight[kTileKeys * kBlockQueries];
    HWY_ALIGN Real ds[kTileKeys * kBlockQueries];  // 0 where rejected
  };

  /// The number of the document at a position.
  Real document_of(int64_t position) const {
    const ScreeningPass<Real>& pass = backward_.pass;
    return pass.document == nullptr ? Real{0} : pass.document[position - pass.key_origin];
  }

  HWY_INLINE void prepare() {
    prepared_ = true;
    const int64_t end = padded(count_);
    std::fill(rows_.dh + count_ * value_width_, rows_.dh + end * value_width_, Real{0});
    for (int64_t i = 0; i < end; i += kTileKeys) {
      Transpose(rows_.q + i * key_width_, key_width_, rows_.q_tiles + i * key_width_);
      Transpose(rows_.dh + i * value_width_, value_width_, rows_.dh_tiles + i * value_width_);
    }
    for (int64_t i = 0; i < end; ++i) document_[i] = i < count_ ? document_of(first_query_ + i) : Real{-2};
  }

  /// Weights and gradients of the similarities of the keys e, e + 1, ... of a group with all queries.
  HWY_INLINE void compute_pairs(Keys& keys, int64_t e) {
    const LaneTag<Real> d;
    constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>()), kVectors = kTileKeys / kWidth;
    constexpr int64_t kGroup = kQueryGroup<Real>;
    const auto zero = hn::Zero(d), inverse_r = hn::Set(d, head_.inverse_r);
    auto accept = zero, softmask = zero;
    std::fill_n(keys.accepted + e, kGroup, uint64_t{0});
    for (int64_t i = 0; i < count_; i += kTileKeys) {
      SizedVec<LaneTag<Real>> s[kGroup][kVectors], dweight[kGroup][kVectors];
      // The same sums as in ScreenTile, bit by bit, so that the same keys are accepted.
      Similarities<kGroup, kVectors, Real>(
          head_.key_dim, [&](int64_t g) HWY_ATTR { return keys.row[e + g]; },
          [&](int64_t) HWY_ATTR { return rows_.q_tiles + i * key_width_; }, s);
      Similarities<kGroup, kVectors, Real>(
          head_.value_dim, [&](int64_t g) HWY_ATTR { return keys.value[e + g]; },
          [&](int64_t) HWY_ATTR { return rows_.dh_tiles + i * value_width_; }, dweight);
      for (int64_t g = 0; g < kGroup; ++g) {
        for (int64_t x = 0; x < kVectors; ++x) {
          const int64_t query = i + x * kWidth, distance = first_query_ + query - keys.position[e + g];
          hn::Vec<LaneTag<Real>> shortfall, t;
          TrimLanes(head_, s[g][x], shortfall, t);
          const auto m = OfQueries(head_, head_.softmask, distance);
          auto counts = hn::And(hn::Gt(m, zero), hn::Not(hn::Eq(t, zero)));
          counts = hn::And(counts, hn::Eq(hn::Load(d, document_ + query), hn::Set(d, keys.document[e + g])));
          const auto dw = hn::IfThenElseZero(counts, hn::Vec<LaneTag<Real>>(dweight[g][x])), a = hn::Mul(t, t);
          const auto da_t = hn::IfThenElseZero(counts, hn::Mul(hn::Mul(dw, m), t));
          const int64_t at = (e + g) * kBlockQueries + query;
          hn::Store(hn::Mul(a, m), d, keys.weight + at);
          hn::Store(hn::Mul(hn::Add(da_t, da_t), inverse_r), d, keys.ds + at);
          keys.accepted[e + g] |= BitsOf<Real>(counts) << query;
          accept = hn::MulAdd(da_t, shortfall, accept);
          if (head_.softmask_slope == nullptr) continue;
          softmask = hn::MulAdd(hn::Mul(dw, a), OfQueries(head_, head_.softmask_slope, distance), softmask);
        }
      }
    }
    scalars_.accept += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, accept)));
    scalars_.softmask += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, softmask)));
  }

  /// dk += ds q and dv += weight dh, key by key.
  HWY_INLINE void add_to_keys(const Keys& keys) {
    for (int64_t e = 0; e < keys.count; ++e) {
      const Real *weight = keys.weight + e * kBlockQueries, *ds = keys.ds + e * kBlockQueries;
      AddRows(
          keys.accepted[e], ds, key_width_, [&](int64_t i) HWY_ATTR { return rows_.q + i * key_width_; }, keys.sums[e]);
      AddRows(
          keys.accepted[e], weight, value_width_, [&](int64_t i) HWY_ATTR { return rows_.dh + i * value_width_; },
          keys.sums[e] + key_width_);
      if (head_.mipe_step == 0) continue;
      for (uint64_t queries = keys.accepted[e]; queries != 0; queries &= queries - 1) {
        const int64_t i = std::countr_zero(queries);
        const Real *q = rows_.q + i * key_width_, *k = keys.row[e];
        const double cross = static_cast<double>(q[0]) * k[1] - static_cast<double>(q[1]) * k[0];
        scalars_.mipe += static_cast<double>(ds[i]) * static_cast<double>(first_query_ + i - keys.position[e]) * cross;
      }
    }
  }

  /// dq += ds k, a group of queries and 16 columns at a time.
  HWY_INLINE void add_to_queries(const Keys& keys) {
    const LaneTag<Real> d;
    constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>()), kVectors = kTileKeys / kWidth;
    constexpr int64_t kGroup = kQueryGroup<Real>;
    for (int64_t at = 0; at < key_width_; at += kTileKeys) {
      for (int64_t i = 0; i < count_; i += kGroup) {
        SizedVec<LaneTag<Real>> sum[kGroup][kVectors];
        for (int64_t g = 0; g < kGroup; ++g) {
          for (int64_t x = 0; x < kVectors; ++x) sum[g][x] = hn::Zero(d);
        }
        for (int64_t e = 0; e < keys.count; ++e) {
          for (int64_t g = 0; g < kGroup; ++g) {
            const auto ds = hn::Set(d, keys.ds[e * kBlockQueries + i + g]);
            for (int64_t x = 0; x < kVectors; ++x) {
              sum[g][x] = hn::MulAdd(ds, hn::LoadU(d, keys.row[e] + at + x * kWidth), sum[g][x]);
            }
          }
        }
        for (int64_t g = 0; g < kGroup; ++g) {
          Real* HWY_RESTRICT dq = rows_.dq + (i + g) * key_width_ + at;
          for (int64_t x = 0; x < kVectors; ++x) {
            hn::StoreU(hn::Add(hn::LoadU(d, dq + x * kWidth), sum[g][x]), d, dq + x * kWidth);
          }
        }
      }
    }
  }

  ScreeningBackward<Real>& backward_;
  const ScreeningHead<Real>& head_;
  const BackwardScratch<Real>& rows_;
  const int64_t first_query_, count_, key_width_, value_width_;
  ScalarSums& scalars_;
  bool prepared_ = false;
  HWY_ALIGN Real document_[kBlockQueries];
};

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set
