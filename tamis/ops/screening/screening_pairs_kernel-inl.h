// The backward pass pair by pair: the accepted pairs of a query are recorded and processed when its dh is known.
// Included once per instruction set.

#include "tamis/ops/screening/screening_kernel.h"

#if defined(TAMIS_OPS_SCREENING_PAIRS_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_OPS_SCREENING_PAIRS_KERNEL_INL_H_
#undef TAMIS_OPS_SCREENING_PAIRS_KERNEL_INL_H_
#else
#define TAMIS_OPS_SCREENING_PAIRS_KERNEL_INL_H_
#endif

#include "tamis/ops/screening/screening_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// The scratch memory of a backward pass.
template <typename Real>
struct BackwardScratch {
  explicit BackwardScratch(const ScreeningPass<Real>& pass) {
    const int64_t keys = padded(pass.head.key_dim), values = padded(pass.head.value_dim);
    q = pass.scratch;
    h = q + kBlockQueries * keys;
    dq = h + kBlockQueries * values;
    dh = dq + kBlockQueries * keys;
    key_row = dh + kBlockQueries * values;
    value_row = key_row + keys;
    gate_row = value_row + values;
    result_row = gate_row + values;
    q_tiles = result_row + values;
    dh_tiles = q_tiles + kBlockQueries * keys;
  }
  Real *q, *h, *dq, *dh;  // [kBlockQueries] rows
  Real *key_row, *value_row, *gate_row, *result_row;
  Real *q_tiles, *dh_tiles;  // [kBlockQueries / 16][padded(K) or padded(V)][16]: q and dh, one query per lane
};

/// Sums over the accepted pairs of a block from which the gradients of the head's scalars follow.
struct ScalarSums {
  double accept = 0;    // da t (1 - t)
  double softmask = 0;  // dm dm/ds_w
  double mipe = 0;      // ds (i - j) (q0 k1 - q1 k0)
};

/// Records the accepted keys of one query in a panel; returns the new count.
template <typename Real>
HWY_INLINE int64_t RecordAccepted(uint64_t accepted, const Real* HWY_RESTRICT shortfall, int64_t panel, int64_t count,
                                  Real* HWY_RESTRICT accepted_shortfall, int32_t* HWY_RESTRICT accepted_key) {
  for (; accepted != 0; accepted &= accepted - 1, ++count) {
    const int64_t l = std::countr_zero(accepted);
    accepted_shortfall[count] = shortfall[l];
    accepted_key[count] = static_cast<int32_t>(panel + l);
  }
  return count;
}

/// The accepted pairs of a block, 16 at a time and of different queries, as many queries accept few keys.
template <typename Real>
class PairsBackward {
 public:
  PairsBackward(ScreeningBackward<Real>& backward, const BackwardScratch<Real>& rows, int64_t first_query,
                const Slots& slots, ScalarSums& scalars)
      : backward_(backward),
        head_(backward.pass.head),
        rows_(rows),
        first_query_(first_query),
        slots_(slots),
        scalars_(scalars) {}

  /// The pairs of the query first_query + i, whose dh must be known.
  HWY_INLINE void add(int64_t i, int64_t count, const Real* HWY_RESTRICT accepted_shortfall,
                      const int32_t* HWY_RESTRICT accepted_key) {
    const int64_t value_width = padded(head_.value_dim);
    const Real* HWY_RESTRICT dh = rows_.dh + i * value_width;
    for (int64_t a = 0; a < count; ++a) {
      const int64_t key = accepted_key[a], distance = first_query_ + i - key, e = pairs_;
      query_[e] = i;
      distance_[e] = distance;
      slot_[e] = slots_(key);
      shortfall_[e] = accepted_shortfall[a];
      softmask_[e] = *SoftmaskOf(head_, distance);
      slope_[e] =
          head_.softmask_slope == nullptr ? Real{0} : head_.softmask_slope[kMaskPadding + head_.span - 1 - distance];
      dweight_[e] = Dot(dh, backward_.pass.ring.values + slot_[e] * value_width, value_width);
      if (++pairs_ == kTileKeys) flush();
    }
  }

  /// Completes dq, the sums of the keys and of the scalars; to be called after the last query.
  HWY_INLINE void finish() {
    if (pairs_ > 0) flush();
  }

 private:
  HWY_INLINE void flush() {
    const LaneTag<Real> d;
    const auto one = hn::Set(d, Real{1});
    auto accept = hn::Zero(d), softmask = hn::Zero(d);
    for (int64_t e = pairs_; e < kTileKeys; ++e) shortfall_[e] = softmask_[e] = slope_[e] = dweight_[e] = 0;
    HWY_ALIGN Real weight[kTileKeys], ds[kTileKeys];
    for (int64_t x = 0; x < kTileKeys; x += hn::MaxLanes(d)) {
      const auto short_x = hn::Load(d, shortfall_ + x), t = PositivePart(d, hn::Sub(one, short_x));
      const auto m = hn::Load(d, softmask_ + x), dw = hn::Load(d, dweight_ + x);
      const auto a = hn::Mul(t, t), da_t = hn::Mul(hn::Mul(dw, m), t);
      hn::Store(hn::Mul(a, m), d, weight + x);
      // a = t^2, t = 1 - (1 - s) / r: da/ds = 2 t / r, da/ds_r = 2 t (1 - r) (1 - s) / r.
      hn::Store(hn::Mul(hn::Add(da_t, da_t), hn::Set(d, head_.inverse_r)), d, ds + x);
      accept = hn::MulAdd(da_t, short_x, accept);
      softmask = hn::MulAdd(hn::Mul(dw, a), hn::Load(d, slope_ + x), softmask);
    }
    scalars_.accept += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, accept)));
    scalars_.softmask += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, softmask)));
    add_rows(weight, ds);
    pairs_ = 0;
  }

  /// dq += ds k, dk += ds q and dv += weight dh.
  HWY_INLINE void add_rows(const Real* HWY_RESTRICT weight, const Real* HWY_RESTRICT ds) {
    const LaneTag<Real> d;
    const int64_t key_width = padded(head_.key_dim), value_width = padded(head_.value_dim);
    const Real* HWY_RESTRICT keys = backward_.pass.ring.rows;
    for (int64_t e = 0, end = 0; e < pairs_; e = end) {
      while (end < pairs_ && query_[end] == query_[e]) ++end;
      const Real* HWY_RESTRICT q = rows_.q + query_[e] * key_width;
      const Real* HWY_RESTRICT dh = rows_.dh + query_[e] * value_width;
      Real* HWY_RESTRICT dq = rows_.dq + query_[e] * key_width;
      for (int64_t at = 0; at < key_width; at += hn::MaxLanes(d)) {
        auto sum = hn::LoadU(d, dq + at);
        for (int64_t p = e; p < end; ++p) {
          sum = hn::MulAdd(hn::Set(d, ds[p]), hn::LoadU(d, keys + slot_[p] * key_width + at), sum);
        }
        hn::StoreU(sum, d, dq + at);
      }
      for (int64_t p = e; p < end; ++p) {
        Real* HWY_RESTRICT sums = backward_.sums + slot_[p] * (key_width + value_width);
        AddScaled(ds[p], q, sums, key_width);
        AddScaled(weight[p], dh, sums + key_width, value_width);
      }
      if (head_.mipe_step == 0) continue;
      // ds_ij / d step = (i - j) (q0 k1 - q1 k0): only differences of positions, whatever their size.
      for (int64_t p = e; p < end; ++p) {
        const Real* key = keys + slot_[p] * key_width;
        const double cross = static_cast<double>(q[0]) * key[1] - static_cast<double>(q[1]) * key[0];
        scalars_.mipe += static_cast<double>(ds[p]) * static_cast<double>(distance_[p]) * cross;
      }
    }
  }

  ScreeningBackward<Real>& backward_;
  const ScreeningHead<Real>& head_;
  const BackwardScratch<Real>& rows_;
  const int64_t first_query_;
  const Slots slots_;
  ScalarSums& scalars_;
  int64_t pairs_ = 0;  // collected
  int64_t query_[kTileKeys], distance_[kTileKeys], slot_[kTileKeys];
  HWY_ALIGN Real shortfall_[kTileKeys], softmask_[kTileKeys], slope_[kTileKeys], dweight_[kTileKeys];
};

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set
