// The backward walk. It repeats the forward walk block by block, remembers the accepted pairs of the block, and then
// goes through those pairs alone: a rejected key costs nothing here and its value is not read.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/screening/screening_backward_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/ops/screening/screening_search_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

/// Scratch memory of a walk by name; PackKeys uses the row behind q and h.
template <typename Real>
struct BackwardScratch {
  explicit BackwardScratch(const ScreeningWalk<Real>& walk) {
    const int64_t keys = padded(walk.head.key_dim), values = padded(walk.head.value_dim);
    q = walk.scratch;
    h = q + kBlockQueries * keys;
    dq = h + kBlockQueries * values + keys;
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
/// wanted.
template <typename Real>
HWY_INLINE void FinishBackward(const ScreeningBackward<Real>& backward, int64_t query, double norm, double factor,
                               const Real* HWY_RESTRICT h, Real* HWY_RESTRICT dh, Real* HWY_RESTRICT gate,
                               Real* HWY_RESTRICT result) {
  const LaneTag<Real> d;
  const ScreeningWalk<Real>& walk = backward.walk;
  const int64_t row = query - walk.query_origin, V = walk.head.value_dim, width = padded(V);
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  const auto one = hn::Set(d, Real{1}), scale = hn::Set(d, static_cast<Real>(factor));
  LoadRow(walk.out, row, V, dh);
  if (walk.gate.data != nullptr) {
    LoadRow(walk.gate, row, V, gate);
    InStep<Real>(width, [&](auto vectors, int64_t at) HWY_ATTR {
      hn::Vec<LaneTag<Real>> g[vectors], sigmoid[vectors], G[vectors];
      for (int i = 0; i < vectors; ++i) g[i] = hn::LoadU(d, gate + at + i * kWidth);
      Gate(d, g, sigmoid, G);
      for (int i = 0; i < vectors; ++i) {
        const int64_t x = at + i * kWidth;
        const auto dout = hn::LoadU(d, dh + x), u = hn::Mul(hn::LoadU(d, h + x), scale);
        // dG/dg = (1 - G^2) sigmoid (1 + g (1 - sigmoid))
        const auto silu_slope = hn::Mul(sigmoid[i], hn::MulAdd(g[i], hn::Sub(one, sigmoid[i]), one));
        const auto slope = hn::Mul(hn::NegMulAdd(G[i], G[i], one), silu_slope);
        hn::StoreU(hn::Mul(hn::Mul(dout, u), slope), d, gate + x);
        hn::StoreU(hn::Mul(dout, G[i]), d, dh + x);
        hn::StoreU(hn::Mul(u, G[i]), d, result + x);
      }
    });
    StoreRow(gate, V, backward.dgate, row);
  } else if (backward.result.data != nullptr) {
    for (int64_t at = 0; at < width; at += kWidth) hn::StoreU(hn::Mul(hn::LoadU(d, h + at), scale), d, result + at);
  }
  if (backward.result.data != nullptr) StoreRow(result, V, backward.result, row);
  if (!walk.head.tanh_norm || norm == 0) return;  // u = h; at h = 0 TanhNorm has gradient 1
  // u = f h, f = tanh(n) / n: dh = f du + f'(n) / n (h . du) h, f'(n) = (1 - tanh(n)^2 - f) / n.
  const double tanh_norm = factor * norm;
  const double along = static_cast<double>(Dot(h, dh, width)) * ((1 - tanh_norm * tanh_norm - factor) / norm) / norm;
  for (int64_t at = 0; at < width; at += hn::MaxLanes(d)) {
    const auto scaled = hn::Mul(scale, hn::LoadU(d, dh + at));
    hn::StoreU(hn::MulAdd(hn::Set(d, static_cast<Real>(along)), hn::LoadU(d, h + at), scaled), d, dh + at);
  }
}

/// The accepted pairs of one query, 16 at a time.
template <typename Real>
HWY_INLINE void PairsBackward(ScreeningBackward<Real>& backward, int64_t query, int64_t count,
                              Real* HWY_RESTRICT accepted_shortfall, int32_t* HWY_RESTRICT accepted_key,
                              const Slots& slots, const Real* HWY_RESTRICT q, const Real* HWY_RESTRICT dh,
                              Real* HWY_RESTRICT dq) {
  const LaneTag<Real> d;
  const ScreeningWalk<Real>& walk = backward.walk;
  const ScreeningHead<Real>& head = walk.head;
  const int64_t key_width = padded(head.key_dim), value_width = padded(head.value_dim);
  const int64_t sums_width = key_width + value_width;
  const auto zero = hn::Zero(d), one = hn::Set(d, Real{1});
  auto accept_sum = zero, softmask_sum = zero;
  double mipe_sum = 0;

  for (int64_t start = 0; start < count; start += kTileKeys) {
    const int64_t pairs = std::min(kTileKeys, count - start);
    HWY_ALIGN Real shortfall[kTileKeys] = {}, softmask[kTileKeys] = {}, slope[kTileKeys] = {}, dweight[kTileKeys] = {};
    HWY_ALIGN Real weight[kTileKeys], ds[kTileKeys];
    int64_t slot[kTileKeys];
    for (int64_t e = 0; e < pairs; ++e) {
      const int64_t key = accepted_key[start + e];
      slot[e] = slots(key);
      shortfall[e] = accepted_shortfall[start + e];
      softmask[e] = *SoftmaskOf(head, query - key);
      if (head.softmask_slope != nullptr) {
        slope[e] = head.softmask_slope[kMaskPadding + head.span - 1 - (query - key)];
      }
      dweight[e] = Dot(dh, walk.ring.values + slot[e] * value_width, value_width);
    }
    for (int64_t x = 0; x < kTileKeys; x += hn::MaxLanes(d)) {
      const auto short_x = hn::Load(d, shortfall + x), t = PositivePart(d, hn::Sub(one, short_x));
      const auto m = hn::Load(d, softmask + x), dw = hn::Load(d, dweight + x);
      const auto a = hn::Mul(t, t), da = hn::Mul(dw, m);
      hn::Store(hn::Mul(a, m), d, weight + x);
      // a = t^2, t = 1 - (1 - s) / r: da/ds = 2 t / r, da/ds_r = 2 t (1 - r) (1 - s) / r.
      const auto da_t = hn::Mul(da, t);
      hn::Store(hn::Mul(hn::Add(da_t, da_t), hn::Set(d, head.inverse_r)), d, ds + x);
      accept_sum = hn::MulAdd(da_t, short_x, accept_sum);
      softmask_sum = hn::MulAdd(hn::Mul(dw, a), hn::Load(d, slope + x), softmask_sum);
    }
    for (int64_t at = 0; at < key_width; at += hn::MaxLanes(d)) {
      auto sum = hn::LoadU(d, dq + at);
      for (int64_t e = 0; e < pairs; ++e) {
        sum = hn::MulAdd(hn::Set(d, ds[e]), hn::LoadU(d, walk.ring.rows + slot[e] * key_width + at), sum);
      }
      hn::StoreU(sum, d, dq + at);
    }
    for (int64_t e = 0; e < pairs; ++e) {
      Real* HWY_RESTRICT sums = backward.sums + slot[e] * sums_width;
      AddScaled(ds[e], q, sums, key_width);
      AddScaled(weight[e], dh, sums + key_width, value_width);
    }
    if (head.mipe_step != 0) {
      // ds_ij / d step = (i - j) (q0 k1 - q1 k0): only differences of positions, whatever their size.
      for (int64_t e = 0; e < pairs; ++e) {
        const Real* key = walk.ring.rows + slot[e] * key_width;
        const double cross = static_cast<double>(q[0]) * key[1] - static_cast<double>(q[1]) * key[0];
        mipe_sum += static_cast<double>(ds[e]) * static_cast<double>(query - accepted_key[start + e]) * cross;
      }
    }
  }
  backward.d_accept += 2.0 * static_cast<double>(head.one_minus_r) * hn::GetLane(hn::SumOfLanes(d, accept_sum));
  backward.d_softmask += hn::GetLane(hn::SumOfLanes(d, softmask_sum));
  backward.d_mipe_step += mipe_sum;
}

/// dq of one query: undoes normalisation and rotation. q is the unit rotated row, norm its denominator.
template <typename Real>
HWY_INLINE void FinishQuery(const ScreeningBackward<Real>& backward, const Rotor& rotor, int64_t query,
                            const Real* HWY_RESTRICT q, double norm, Real* HWY_RESTRICT dq) {
  const ScreeningWalk<Real>& walk = backward.walk;
  NormalizeBackward(q, norm, dq, padded(walk.head.key_dim));
  rotor.rotate_back(dq);
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
HWY_INLINE void FinishKey(const ScreeningBackward<Real>& backward, const Rotor& rotor, int64_t key,
                          Real* HWY_RESTRICT sums, const KeyRow& key_row, const ValueRow& value_row) {
  const ScreeningWalk<Real>& walk = backward.walk;
  const int64_t K = walk.head.key_dim, V = walk.head.value_dim, index = key - walk.key_origin;
  Real* dvalue = sums + padded(K);
  if (!AllZero(sums, padded(K))) {
    const UnitRow<Real> unit = key_row();
    NormalizeBackward(unit.row, unit.norm, sums, padded(K));
    rotor.rotate_back(sums);
  }
  StoreRow(sums, K, backward.dk, index);
  if (!AllZero(dvalue, padded(V))) {
    const UnitRow<Real> unit = value_row();
    NormalizeBackward(unit.row, unit.norm, dvalue, padded(V));
  }
  StoreRow(dvalue, V, backward.dv, index);
}

/// Keys [first, last) that no later query of this walk can see: written, or handed to the neighbouring walk.
template <typename Real>
HWY_INLINE void RetireKeys(const ScreeningBackward<Real>& backward, int64_t first, int64_t last, bool to_tail) {
  const ScreeningWalk<Real>& walk = backward.walk;
  const KeyRing<Real>& ring = walk.ring;
  const int64_t key_width = padded(walk.head.key_dim), value_width = padded(walk.head.value_dim);
  const int64_t width = key_width + value_width;
  Rotor rotor(walk.head.mipe_step, first);
  for (int64_t key = first; key < last; ++key, rotor.advance()) {
    const int64_t slot = key % ring.capacity;
    Real* sums = backward.sums + slot * width;
    if (key < walk.first && backward.halo != nullptr) {
      std::copy(sums, sums + width, backward.halo + (key - (walk.first - walk.head.span + 1)) * width);
    } else if (to_tail) {
      std::copy(sums, sums + width, backward.tail + (key - (walk.last - walk.head.span + 1)) * width);
    } else {
      FinishKey(
          backward, rotor, key, sums,
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
  HWY_ALIGN double norm[kBlockQueries], factor[kBlockQueries], query_norm[kBlockQueries];
  Verdicts<Real> verdicts;
  int64_t accepted_count[kBlockQueries];
  int64_t packed = walk.packed, retired = walk.packed;

  for (int64_t first = walk.first; first < walk.last; first += walk.block) {
    const int64_t count = std::min(walk.block, walk.last - first);
    const int64_t unseen = std::max(retired, first + count - walk.head.span + 1);
    PrefetchBlock(backward, first, count, retired, unseen);
    PackKeys(walk, packed, first + count);
    packed = first + count;
    LoadQueries(walk, first, count, scratch.q, query_norm);
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

    TanhNormFactors(scratch.h, count, value_width, norm, factor);
    if (!walk.head.tanh_norm) std::fill(factor, factor + count, 1.0);

    std::fill(scratch.dq, scratch.dq + count * key_width, Real{0});
    Rotor rotor(walk.head.mipe_step, first);
    for (int64_t i = 0; i < count; ++i, rotor.advance()) {
      Real *dh = scratch.dh + i * value_width, *dq = scratch.dq + i * key_width;
      FinishBackward(backward, first + i, norm[i], factor[i], scratch.h + i * value_width, dh, scratch.gate_row,
                     scratch.result_row);
      PairsBackward(backward, first + i, accepted_count[i], backward.accepted_shortfall + i * capacity,
                    backward.accepted_key + i * capacity, slots, scratch.q + i * key_width, dh, dq);
      FinishQuery(backward, rotor, first + i, scratch.q + i * key_width, query_norm[i], dq);
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
  Rotor rotor(walk.head.mipe_step, first);
  for (int64_t key = first; key < end; ++key, rotor.advance()) {
    const Real *before = tail + (key - first) * width, *after = halo + (key - first) * width;
    for (int64_t d = 0; d < width; ++d) sums[d] = before[d] + after[d];
    const int64_t index = key - walk.key_origin;
    FinishKey(
        backward, rotor, key, sums,
        [&]() HWY_ATTR {
          const UnitRow<Real> unit = load_unit(walk.k, index, walk.head.key_dim, scratch.key_row);
          rotor.rotate(scratch.key_row);
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
