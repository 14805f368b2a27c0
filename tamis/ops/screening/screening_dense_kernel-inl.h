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
    uint64_t accepted[kTileKeys];                      // bit i: query i
    HWY_ALIGN Real weight[kTileKeys * kBlockQueries];  // 0 where rejected
    HWY_ALIGN Real ds[kTileKeys * kBlockQueries];      // 0 where rejected
  };

  static constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>()), kTileVectors = kTileKeys / kWidth;
  static constexpr int64_t kValueVectors = std::min<int64_t>(4 * kTileVectors, 8);  // of dv that are summed with dk
  static constexpr bool kManyRegisters = kTilesAtOnce<Real> > 1;                    // enough for the sums of two keys

  /// Sums over pairs, one per lane.
  struct PairSums {
    HWY_INLINE PairSums() : accept(hn::Zero(LaneTag<Real>())), softmask(accept) {}
    SizedVec<LaneTag<Real>> accept, softmask;
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
    share_rows_ =
        kManyRegisters && AllFinite(rows_.q, count_ * key_width_) && AllFinite(rows_.dh, count_ * value_width_);
    for (int64_t i = 0; i < end; ++i) document_[i] = i < count_ ? document_of(first_query_ + i) : Real{-2};
  }

  /// Weights and gradients of the similarities of the keys e, e + 1, ... of a group with all queries.
  HWY_INLINE void compute_pairs(Keys& keys, int64_t e) {
    const LaneTag<Real> d;
    PairSums sums;
    std::fill_n(keys.accepted + e, kQueryGroup<Real>, uint64_t{0});
    const int64_t whole = every_pair_counts(keys, e) ? count_ / kTileKeys * kTileKeys : 0;
    int64_t i = 0;
    const auto compute = [&](auto tiles, auto masked, int64_t end) HWY_ATTR {
      for (; i + (tiles - 1) * kTileKeys < end; i += tiles * kTileKeys) compute_tiles<tiles, masked>(keys, e, i, sums);
    };
    using One = std::integral_constant<int64_t, 1>;
    using Several = std::integral_constant<int64_t, kTilesAtOnce<Real>>;
    compute(Several(), std::false_type(), whole);
    compute(Several(), std::true_type(), count_);
    if constexpr (kManyRegisters) compute(One(), std::true_type(), count_);
    scalars_.accept += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Vec<LaneTag<Real>>(sums.accept))));
    scalars_.softmask += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, hn::Vec<LaneTag<Real>>(sums.softmask))));
  }

  /// Whether every query of the block sees the keys e, e + 1, ... of a group, all with the softmask 1.
  bool every_pair_counts(const Keys& keys, int64_t e) const {
    const int64_t last = e + kQueryGroup<Real> - 1;
    return head_.softmask == nullptr && head_.softmask_slope == nullptr && backward_.pass.document == nullptr &&
           last < keys.count && keys.position[last] <= first_query_;
  }

  /// What compute_pairs computes, for the queries i, i + 1, ... of kTiles tiles. kMasked: false if every pair counts.
  template <int64_t kTiles, bool kMasked>
  HWY_INLINE void compute_tiles(Keys& keys, int64_t e, int64_t i, PairSums& sums) {
    const LaneTag<Real> d;
    constexpr int64_t kGroup = kQueryGroup<Real>, kVectors = kTiles * kTileVectors;
    const auto vector_of = [&](const Real* tiles, int64_t width, int64_t x) HWY_ATTR {
      return tiles + (i + x / kTileVectors * kTileKeys) * width + x % kTileVectors * kWidth;
    };
    SizedVec<LaneTag<Real>> s[kGroup][kVectors], dweight[kGroup][kVectors];
    // The same sums as in ScreenTiles, bit by bit, so that the same keys are accepted.
    Similarities<kGroup, kVectors, Real>(
        head_.key_dim, [&](int64_t g) HWY_ATTR { return keys.row[e + g]; },
        [&](int64_t, int64_t x) HWY_ATTR { return vector_of(rows_.q_tiles, key_width_, x); }, s);
    Similarities<kGroup, kVectors, Real>(
        head_.value_dim, [&](int64_t g) HWY_ATTR { return keys.value[e + g]; },
        [&](int64_t, int64_t x) HWY_ATTR { return vector_of(rows_.dh_tiles, value_width_, x); }, dweight);
    const auto zero = hn::Zero(d), two_by_r = hn::Set(d, 2 * head_.inverse_r);
    for (int64_t first = 0; first < kVectors; first += kTileVectors) {
      for (int64_t g = 0; g < kGroup; ++g) {
        for (int64_t x = first; x < first + kTileVectors; ++x) {
          const int64_t query = i + x * kWidth, distance = first_query_ + query - keys.position[e + g];
          hn::Vec<LaneTag<Real>> shortfall, t, dw_m = dweight[g][x];
          TrimLanes(head_, s[g][x], shortfall, t);
          auto counts = hn::Not(hn::Eq(t, zero));
          const auto a = hn::Mul(t, t);
          auto weight = a;
          if constexpr (kMasked) {
            const auto m = OfQueries(head_, head_.softmask, distance);
            counts = hn::And(counts, hn::Gt(m, zero));
            counts = hn::And(counts, hn::Eq(hn::Load(d, document_ + query), hn::Set(d, keys.document[e + g])));
            if (head_.softmask_slope != nullptr) {
              const auto dw = hn::IfThenElseZero(counts, dw_m);
              sums.softmask =
                  hn::MulAdd(hn::Mul(dw, a), OfQueries(head_, head_.softmask_slope, distance), sums.softmask);
            }
            weight = hn::IfThenElseZero(counts, hn::Mul(a, m));
            dw_m = hn::Mul(dw_m, m);
          }
          const auto da_t = hn::IfThenElseZero(counts, hn::Mul(dw_m, t));
          const int64_t at = (e + g) * kBlockQueries + query;
          hn::Store(weight, d, keys.weight + at);
          hn::Store(hn::Mul(da_t, two_by_r), d, keys.ds + at);
          keys.accepted[e + g] |= BitsOf<Real>(counts) << query;
          sums.accept = hn::MulAdd(da_t, shortfall, sums.accept);
        }
      }
    }
  }

  /// What the accepted queries add to dk and to the first columns of dv of a key: with AVX2 and AVX-512 in registers.
  struct KeySums {
    HWY_INLINE KeySums() {}  // the implicit one would not be compiled for the instruction set
    HWY_INLINE void add(Real ds, const Real* HWY_RESTRICT q, Real weight, const Real* HWY_RESTRICT dh) {
      dk.add(ds, q);
      dv.add(weight, dh);
    }
    HWY_INLINE void add_to(Real* HWY_RESTRICT sums) const {
      dk.add_to(sums);
      dv.add_to(sums + kLanes);
    }
    ColumnSum<kTileVectors, Real> dk;
    ColumnSum<kValueVectors, Real> dv;
  };

  /// dk += ds q, dv += weight dh, and the gradient of MiPE's step.
  HWY_INLINE void add_to_keys(const Keys& keys) {
    constexpr int64_t kColumns = kValueVectors * kWidth;
    // Columns of dv that are summed together with dk: none if K is above 16 or V too small.
    const int64_t together = key_width_ == kLanes && value_width_ >= kColumns ? kColumns : 0;
    for (int64_t e = 0; together > 0 && e < keys.count;) {
      if (kManyRegisters && share_rows_ && e + 1 < keys.count) {
        add_together<2>(keys, e);
        e += 2;
      } else {
        add_together<1>(keys, e);
        e += 1;
      }
    }
    for (int64_t e = 0; together < value_width_ && e < keys.count; ++e) {
      const Real *weight = keys.weight + e * kBlockQueries, *ds = keys.ds + e * kBlockQueries;
      const auto add = [&](const Real* factor, const Real* rows, int64_t stride, int64_t width, int64_t at) HWY_ATTR {
        AddRows(
            keys.accepted[e], factor, width, [&](int64_t i) HWY_ATTR { return rows + i * stride; }, keys.sums[e] + at);
      };
      if (together == 0) add(ds, rows_.q, key_width_, key_width_, 0);
      add(weight, rows_.dh + together, value_width_, value_width_ - together, key_width_ + together);
    }
    if (head_.mipe_step != 0) add_to_mipe(keys);
  }

  /// dk and the first columns of dv of kKeys keys. The rows of a query that one of them accepts are loaded once for
  /// all; where another rejects it, the weight is 0.
  template <int kKeys>
  HWY_INLINE void add_together(const Keys& keys, int64_t e) {
    KeySums sums[kKeys];
    uint64_t queries = 0;
    for (int k = 0; k < kKeys; ++k) queries |= keys.accepted[e + k];
    for (; queries != 0; queries &= queries - 1) {
      const int64_t i = std::countr_zero(queries);
      const Real *q = InRegister(rows_.q + i * kLanes), *dh = InRegister(rows_.dh + i * value_width_);
      for (int k = 0; k < kKeys; ++k) {
        const int64_t at = (e + k) * kBlockQueries + i;
        sums[k].add(keys.ds[at], q, keys.weight[at], dh);
      }
    }
    for (int k = 0; k < kKeys; ++k) sums[k].add_to(keys.sums[e + k]);
  }

  /// ds_ij / d mipe_step = (i - j) (q0 k1 - q1 k0).
  HWY_INLINE void add_to_mipe(const Keys& keys) {
    for (int64_t e = 0; e < keys.count; ++e) {
      const Real* k = keys.row[e];
      for (uint64_t queries = keys.accepted[e]; queries != 0; queries &= queries - 1) {
        const int64_t i = std::countr_zero(queries);
        const Real* q = rows_.q + i * key_width_;
        const double cross = static_cast<double>(q[0]) * k[1] - static_cast<double>(q[1]) * k[0];
        scalars_.mipe += static_cast<double>(keys.ds[e * kBlockQueries + i]) *
                         static_cast<double>(first_query_ + i - keys.position[e]) * cross;
      }
    }
  }

  /// dq += ds k, a group of queries and 16 columns at a time.
  HWY_INLINE void add_to_queries(const Keys& keys) {
    const LaneTag<Real> d;
    constexpr int64_t kVectors = kTileVectors, kGroup = kQueryGroup<Real>;
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
  bool share_rows_ = false;  // all rows of q and dh are finite: a rejected pair with the weight 0 adds nothing
  HWY_ALIGN Real document_[kBlockQueries];
};

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set
