// The backward walk. It repeats the forward walk block by block, remembers the accepted pairs of the block, and then
// goes through those pairs alone: a rejected key costs nothing here and its value is not read.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/screening/screening_backward_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/ops/screening/screening_search_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

/// Scratch memory of a walk by name.
template <typename Real>
struct BackwardScratch {
  explicit BackwardScratch(const ScreeningWalk<Real>& walk) {
    const int64_t keys = padded(walk.head.key_dim), values = padded(walk.head.value_dim);
    q = walk.scratch;
    h = q + kBlockQueries * keys;
    dq = h + kBlockQueries * values;
    dh = dq + kBlockQueries * keys;
    key_row = dh + kBlockQueries * values;
    value_row = key_row + keys;
    gate_row = value_row + values;
    result_row = gate_row + values;
  }
  Real *q, *h, *dq, *dh;  // [kBlockQueries] rows
  Real *key_row, *value_row, *gate_row, *result_row;
};

/// Remembers the accepted keys of one query in a panel.
template <typename Real>
HWY_INLINE int64_t Remember(uint64_t accepted, const Real* HWY_RESTRICT shortfall, int64_t panel, int64_t count,
                            Real* HWY_RESTRICT accepted_shortfall, int32_t* HWY_RESTRICT accepted_key) {
  for (; accepted != 0; accepted &= accepted - 1, ++count) {
    const int64_t l = std::countr_zero(accepted);
    accepted_shortfall[count] = shortfall[l];
    accepted_key[count] = static_cast<int32_t>(panel + l);
  }
  return count;
}

/// From the gradient of out = tanh(|h|)/|h| h * G, G = tanh(SiLU(gate)), to dh; writes dgate, and out where it is
/// wanted. factor and slope are those of TanhNormFactors.
template <typename Real>
HWY_INLINE void FinishBackward(const ScreeningBackward<Real>& backward, int64_t query, Real factor, Real slope,
                               const Real* HWY_RESTRICT h, Real* HWY_RESTRICT dh, Real* HWY_RESTRICT gate,
                               Real* HWY_RESTRICT result) {
  const LaneTag<Real> d;
  const ScreeningWalk<Real>& walk = backward.walk;
  const int64_t row = query - walk.query_origin, V = walk.head.value_dim, width = padded(V);
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  const auto one = hn::Set(d, Real{1}), scale = hn::Set(d, factor);
  LoadRow(walk.out, row, V, dh);
  if (walk.gate.data != nullptr) {
    LoadRow(walk.gate, row, V, gate);
    InStep<Real>(width, [&](auto vectors, int64_t at) HWY_ATTR {
      hn::Vec<LaneTag<Real>> g[vectors], sigmoid[vectors], G[vectors];
      for (int i = 0; i < vectors; ++i) g[i] = hn::LoadU(d, gate + at + i * kWidth);
      Gate<Accuracy::kFloat32>(d, g, sigmoid, G);
      for (int i = 0; i < vectors; ++i) {
        const int64_t x = at + i * kWidth;
        const auto dout = hn::LoadU(d, dh + x), u = hn::Mul(hn::LoadU(d, h + x), scale);
        // dG/dg = (1 - G^2) sigmoid (1 + g (1 - sigmoid))
        const auto silu_slope = hn::Mul(sigmoid[i], hn::MulAdd(g[i], hn::Sub(one, sigmoid[i]), one));
        const auto gate_slope = hn::Mul(hn::NegMulAdd(G[i], G[i], one), silu_slope);
        hn::StoreU(hn::Mul(hn::Mul(dout, u), gate_slope), d, gate + x);
        hn::StoreU(hn::Mul(dout, G[i]), d, dh + x);
        hn::StoreU(hn::Mul(u, G[i]), d, result + x);
      }
    });
    StoreRow(gate, V, backward.dgate, row);
  } else if (backward.result.data != nullptr) {
    for (int64_t at = 0; at < width; at += kWidth) hn::StoreU(hn::Mul(hn::LoadU(d, h + at), scale), d, result + at);
  }
  if (backward.result.data != nullptr) StoreRow(result, V, backward.result, row);
  if (factor == Real{1}) return;  // no TanhNorm, or h so short that u = h
  // u = f h, f = tanh(n) / n: dh = f du + f'(n) / n (h . du) h.
  const auto along = hn::Set(d, slope * Dot(h, dh, width));
  for (int64_t at = 0; at < width; at += hn::MaxLanes(d)) {
    const auto scaled = hn::Mul(scale, hn::LoadU(d, dh + at));
    hn::StoreU(hn::MulAdd(along, hn::LoadU(d, h + at), scaled), d, dh + at);
  }
}

/// The accepted pairs of a block's queries, 16 at a time whichever query they belong to: many queries accept few keys.
template <typename Real>
class PairsBackward {
 public:
  PairsBackward(ScreeningBackward<Real>& backward, const BackwardScratch<Real>& rows, int64_t first_query,
                const Slots& slots)
      : backward_(backward), head_(backward.walk.head), rows_(rows), first_query_(first_query), slots_(slots) {}

  /// The pairs of the query first_query + i. Its dh must be there.
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
      dweight_[e] = Dot(dh, backward_.walk.ring.values + slot_[e] * value_width, value_width);
      if (++pairs_ == kTileKeys) flush();
    }
  }

  /// To be called after the last query: dq, the sums of the keys and the scalars' gradients are then complete.
  HWY_INLINE void finish() {
    if (pairs_ > 0) flush();
    backward_.d_accept += 2.0 * static_cast<double>(head_.one_minus_r) * accept_;
    backward_.d_softmask += softmask_sum_;
    backward_.d_mipe_step += mipe_;
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
    accept_ += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, accept)));
    softmask_sum_ += static_cast<double>(hn::GetLane(hn::SumOfLanes(d, softmask)));
    add_rows(weight, ds);
    pairs_ = 0;
  }

  /// dq += ds k, dk += ds q and dv += weight dh.
  HWY_INLINE void add_rows(const Real* HWY_RESTRICT weight, const Real* HWY_RESTRICT ds) {
    const LaneTag<Real> d;
    const int64_t key_width = padded(head_.key_dim), value_width = padded(head_.value_dim);
    const Real* HWY_RESTRICT keys = backward_.walk.ring.rows;
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
        mipe_ += static_cast<double>(ds[p]) * static_cast<double>(distance_[p]) * cross;
      }
    }
  }

  ScreeningBackward<Real>& backward_;
  const ScreeningHead<Real>& head_;
  const BackwardScratch<Real>& rows_;
  const int64_t first_query_;
  const Slots slots_;
  double accept_ = 0, softmask_sum_ = 0, mipe_ = 0;
  int64_t pairs_ = 0;  // waiting
  int64_t query_[kTileKeys], distance_[kTileKeys], slot_[kTileKeys];
  HWY_ALIGN Real shortfall_[kTileKeys], softmask_[kTileKeys], slope_[kTileKeys], dweight_[kTileKeys];
};

/// dq of one query: undoes normalisation and rotation. q is the unit rotated row, norm its denominator.
template <typename Real>
HWY_INLINE void FinishQuery(const ScreeningBackward<Real>& backward, const Rotations<Real>& rotations, int64_t query,
                            const Real* HWY_RESTRICT q, double norm, Real* HWY_RESTRICT dq) {
  const ScreeningWalk<Real>& walk = backward.walk;
  NormalizeBackward(q, norm, dq, padded(walk.head.key_dim));
  rotations.rotate_back(query, dq);
  StoreRow(dq, walk.head.key_dim, backward.dq, query - walk.query_origin);
}

/// A unit row and the denominator that made it one.
template <typename Real>
struct UnitRow {
  const Real* row;
  double norm;
};

/// dk and dv of one key from its sums, which are gradients of the rotated unit key and of the unit value. `key_row` and
/// `value_row` give these, and are asked only where there is a gradient: nobody reads a key that no query accepted.
template <typename Real, typename KeyRow, typename ValueRow>
HWY_INLINE void FinishKey(const ScreeningBackward<Real>& backward, const Rotations<Real>& rotations, int64_t key,
                          Real* HWY_RESTRICT sums, const KeyRow& key_row, const ValueRow& value_row) {
  const ScreeningWalk<Real>& walk = backward.walk;
  const int64_t K = walk.head.key_dim, V = walk.head.value_dim, index = key - walk.key_origin;
  Real* dvalue = sums + padded(K);
  if (!AllZero(sums, padded(K) + padded(V))) {
    const UnitRow<Real> unit_key = key_row(), unit_value = value_row();
    NormalizeBackward(unit_key.row, unit_key.norm, sums, padded(K));
    rotations.rotate_back(key, sums);
    NormalizeBackward(unit_value.row, unit_value.norm, dvalue, padded(V));
  }
  StoreRow(sums, K, backward.dk, index);
  StoreRow(dvalue, V, backward.dv, index);
}

/// Keys [first, last) that no later query of this walk can see: written, or handed to the neighbouring walk.
template <typename Real>
HWY_INLINE void RetireKeys(const ScreeningBackward<Real>& backward, int64_t first, int64_t last, bool to_tail) {
  const ScreeningWalk<Real>& walk = backward.walk;
  const KeyRing<Real>& ring = walk.ring;
  const int64_t key_width = padded(walk.head.key_dim), value_width = padded(walk.head.value_dim);
  const int64_t width = key_width + value_width;
  const Slots slots(first, ring.capacity);
  Rotations<Real> rotations(walk.head);
  for (int64_t key = first; key < last; ++key) {
    rotations.cover(key, key + 1);
    const int64_t slot = slots(key);
    Real* sums = backward.sums + slot * width;
    if (key < walk.first && backward.halo != nullptr) {
      std::copy(sums, sums + width, backward.halo + (key - (walk.first - walk.head.span + 1)) * width);
    } else if (to_tail) {
      std::copy(sums, sums + width, backward.tail + (key - (walk.last - walk.head.span + 1)) * width);
    } else {
      FinishKey(
          backward, rotations, key, sums,
          [&]() HWY_ATTR {
            return UnitRow<Real>{ring.rows + slot * key_width, ring.key_norm[slot]};
          },
          [&]() HWY_ATTR {
            return UnitRow<Real>{ring.values + slot * value_width, ring.value_norm[slot]};
          });
    }
    std::fill(sums, sums + width, Real{0});
  }
}

/// Asks for the rows that the block will want at its end, where it retires the keys [first_key, last_key), and for
/// those that the next one begins with.
template <typename Real>
HWY_INLINE void PrefetchBlock(const ScreeningBackward<Real>& backward, int64_t first, int64_t count, int64_t first_key,
                              int64_t last_key) {
  const ScreeningWalk<Real>& walk = backward.walk;
  const int64_t K = walk.head.key_dim, V = walk.head.value_dim, row = first - walk.query_origin;
  if (walk.gate.data != nullptr) {
    PrefetchRows<Access::kRead>(walk.gate, row, row + count, V);
    PrefetchRows<Access::kWrite>(backward.dgate, row, row + count, V);
  }
  PrefetchRows<Access::kRead>(walk.out, row, row + count, V);
  PrefetchRows<Access::kWrite>(backward.dq, row, row + count, K);
  const int64_t retired = first_key - walk.key_origin, end = last_key - walk.key_origin;
  PrefetchRows<Access::kWrite>(backward.dk, retired, end, K);
  PrefetchRows<Access::kWrite>(backward.dv, retired, end, V);
  PrefetchNextBlock(walk, first, count);
}

template <typename Real>
void Backward(ScreeningBackward<Real>& backward) {
  const ScreeningWalk<Real>& walk = backward.walk;
  const int64_t key_width = padded(walk.head.key_dim), value_width = padded(walk.head.value_dim);
  const int64_t capacity = accepted_capacity(walk.head.span);
  BackwardScratch<Real> scratch(walk);
  HWY_ALIGN Real factor[kBlockQueries], slope[kBlockQueries];
  double query_norm[kBlockQueries];
  Verdicts<Real> verdicts;
  Rotations<Real> rotations(walk.head);
  int64_t accepted_count[kBlockQueries];
  int64_t packed = walk.packed, retired = walk.packed;

  for (int64_t first = walk.first; first < walk.last; first += walk.block) {
    const int64_t count = std::min(walk.block, walk.last - first);
    const int64_t unseen = std::max(retired, first + count - walk.head.span + 1);
    PrefetchBlock(backward, first, count, retired, unseen);
    PackKeys(walk, packed, first + count, rotations, scratch.q);
    packed = first + count;
    LoadQueries(walk, first, count, rotations, scratch.q, query_norm);
    std::fill(scratch.h, scratch.h + count * value_width, Real{0});
    std::fill(accepted_count, accepted_count + count, 0);
    const Slots slots(FirstVisibleTile(walk, first), walk.ring.capacity);
    ForAcceptedKeys<true>(walk, scratch.q, first, count, slots, verdicts,
                          [&](int64_t i, uint64_t accepted, const Real* weight, const Real* shortfall, int64_t panel)
                              HWY_ATTR {
                                AddAccepted(walk, accepted, weight, panel, slots, scratch.h + i * value_width);
                                accepted_count[i] = Remember(accepted, shortfall, panel, accepted_count[i],
                                                             backward.accepted_shortfall + i * capacity,
                                                             backward.accepted_key + i * capacity);
                              });

    TanhNormFactors(walk.head, scratch.h, count, factor, slope);

    std::fill(scratch.dq, scratch.dq + count * key_width, Real{0});
    for (int64_t i = 0; i < count; ++i) {
      FinishBackward(backward, first + i, factor[i], slope[i], scratch.h + i * value_width,
                     scratch.dh + i * value_width, scratch.gate_row, scratch.result_row);
    }
    PairsBackward<Real> pairs(backward, scratch, first, slots);
    for (int64_t i = 0; i < count; ++i) {
      pairs.add(i, accepted_count[i], backward.accepted_shortfall + i * capacity, backward.accepted_key + i * capacity);
    }
    pairs.finish();
    for (int64_t i = 0; i < count; ++i) {
      FinishQuery(backward, rotations, first + i, scratch.q + i * key_width, query_norm[i], scratch.dq + i * key_width);
    }
    RetireKeys(backward, retired, unseen, /*to_tail=*/false);
    retired = unseen;
  }
  RetireKeys(backward, retired, walk.last, /*to_tail=*/backward.tail != nullptr);
}

template <typename Real>
void Finish(const ScreeningBackward<Real>& backward, int64_t end, const Real* tail, const Real* halo) {
  const ScreeningWalk<Real>& walk = backward.walk;
  BackwardScratch<Real> scratch(walk);
  const int64_t width = padded(walk.head.key_dim) + padded(walk.head.value_dim);
  const int64_t first = end - walk.head.span + 1;
  Real* sums = scratch.dq;
  const auto load_unit = [](const Rows& rows, int64_t index, int64_t size, Real* HWY_RESTRICT row) HWY_ATTR {
    LoadRow(rows, index, size, row);
    return UnitRow<Real>{row, Normalize(row, padded(size))};
  };
  Rotations<Real> rotations(walk.head);
  for (int64_t key = first; key < end; ++key) {
    rotations.cover(key, key + 1);
    const Real *before = tail + (key - first) * width, *after = halo + (key - first) * width;
    for (int64_t d = 0; d < width; ++d) sums[d] = before[d] + after[d];
    const int64_t index = key - walk.key_origin;
    FinishKey(
        backward, rotations, key, sums,
        [&]() HWY_ATTR {
          const UnitRow<Real> unit = load_unit(walk.k, index, walk.head.key_dim, scratch.key_row);
          rotations.rotate(key, scratch.key_row);
          return unit;
        },
        [&]() HWY_ATTR { return load_unit(walk.v, index, walk.head.value_dim, scratch.value_row); });
  }
}

void BackwardFloat(ScreeningBackward<float>& backward) {
  Backward(backward);
}
void BackwardDouble(ScreeningBackward<double>& backward) {
  Backward(backward);
}
void FinishFloat(const ScreeningBackward<float>& backward, int64_t end, const float* tail, const float* halo) {
  Finish(backward, end, tail, halo);
}
void FinishDouble(const ScreeningBackward<double>& backward, int64_t end, const double* tail, const double* halo) {
  Finish(backward, end, tail, halo);
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(BackwardFloat);
HWY_EXPORT(BackwardDouble);
HWY_EXPORT(FinishFloat);
HWY_EXPORT(FinishDouble);

template <>
void screening_backward(ScreeningBackward<float>& backward) {
  HWY_DYNAMIC_DISPATCH(BackwardFloat)(backward);
}

template <>
void screening_backward(ScreeningBackward<double>& backward) {
  HWY_DYNAMIC_DISPATCH(BackwardDouble)(backward);
}

template <>
void finish_keys(const ScreeningBackward<float>& backward, int64_t end, const float* tail, const float* halo) {
  HWY_DYNAMIC_DISPATCH(FinishFloat)(backward, end, tail, halo);
}

template <>
void finish_keys(const ScreeningBackward<double>& backward, int64_t end, const double* tail, const double* halo) {
  HWY_DYNAMIC_DISPATCH(FinishDouble)(backward, end, tail, halo);
}

}  // namespace tamis::kernels
#endif
