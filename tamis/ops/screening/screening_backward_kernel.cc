// The backward pass. It repeats the forward pass block by block and then processes the accepted pairs of the block: one
// by one where there are few, panel by panel where there are many. The value of a key that every query of the block
// rejects is not read.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/screening/screening_backward_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/ops/screening/screening_dense_kernel-inl.h"
#include "tamis/ops/screening/screening_search_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

/// dh from the gradient of out = tanh(|h|)/|h| h * G, G = tanh(SiLU(gate)). Writes dgate and, if given, out. factor and
/// slope are those of TanhNormFactors.
template <typename Real>
HWY_INLINE void FinishBackward(const ScreeningBackward<Real>& backward, int64_t query, Real factor, Real slope,
                               const Real* HWY_RESTRICT h, Real* HWY_RESTRICT dh, Real* HWY_RESTRICT gate,
                               Real* HWY_RESTRICT result) {
  const LaneTag<Real> d;
  const ScreeningPass<Real>& pass = backward.pass;
  const int64_t row = query - pass.query_origin, V = pass.head.value_dim, width = padded(V);
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  const auto one = hn::Set(d, Real{1}), scale = hn::Set(d, factor);
  LoadRow(pass.out, row, V, dh);
  if (pass.gate.data != nullptr) {
    LoadRow(pass.gate, row, V, gate);
    InStep<Real>(width, [&](auto vectors, int64_t at) HWY_ATTR {
      SizedVec<LaneTag<Real>> g[vectors], sigmoid[vectors], G[vectors];
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
  if (factor == Real{1}) return;  // no TanhNorm, or u = h as h is short
  // u = f h, f = tanh(n) / n: dh = f du + f'(n) / n (h . du) h.
  const auto along = hn::Set(d, slope * Dot(h, dh, width));
  for (int64_t at = 0; at < width; at += hn::MaxLanes(d)) {
    const auto scaled = hn::Mul(scale, hn::LoadU(d, dh + at));
    hn::StoreU(hn::MulAdd(along, hn::LoadU(d, h + at), scaled), d, dh + at);
  }
}

/// dq of one query: inverts rotation and normalisation. q is the normalised and rotated row, norm its norm before.
template <typename Real>
HWY_INLINE void FinishQuery(const ScreeningBackward<Real>& backward, const Rotations<Real>& rotations, int64_t query,
                            const Real* HWY_RESTRICT q, double norm, Real* HWY_RESTRICT dq) {
  const ScreeningPass<Real>& pass = backward.pass;
  NormalizeBackward(q, norm, dq, padded(pass.head.key_dim));
  rotations.rotate_back(query, dq);
  StoreRow(dq, pass.head.key_dim, backward.dq, query - pass.query_origin);
}

/// A normalised row and its norm before.
template <typename Real>
struct UnitRow {
  const Real* row;
  double norm;
};

/// dk and dv of one key from its sums, the gradients of the rotated unit key and of the unit value. `key_row` and
/// `value_row` load these; they are called only if a query accepted the key.
template <typename Real, typename KeyRow, typename ValueRow>
HWY_INLINE void FinishKey(const ScreeningBackward<Real>& backward, const Rotations<Real>& rotations, int64_t key,
                          Real* HWY_RESTRICT sums, const KeyRow& key_row, const ValueRow& value_row) {
  const ScreeningPass<Real>& pass = backward.pass;
  const int64_t K = pass.head.key_dim, V = pass.head.value_dim, index = key - pass.key_origin;
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

/// Writes the gradients of keys [first, last), which no later query of this pass sees, or stores them in halo or tail.
template <typename Real>
HWY_INLINE void RetireKeys(const ScreeningBackward<Real>& backward, int64_t first, int64_t last, bool to_tail) {
  const ScreeningPass<Real>& pass = backward.pass;
  const KeyRing<Real>& ring = pass.ring;
  const int64_t key_width = padded(pass.head.key_dim), value_width = padded(pass.head.value_dim);
  const int64_t width = key_width + value_width;
  const Slots slots(first, ring.capacity);
  Rotations<Real> rotations(pass.head);
  for (int64_t key = first; key < last; ++key) {
    rotations.cover(key, key + 1);
    const int64_t slot = slots(key);
    Real* sums = backward.sums + slot * width;
    if (key < pass.first && backward.halo != nullptr) {
      std::copy(sums, sums + width, backward.halo + (key - (pass.first - pass.head.span + 1)) * width);
    } else if (to_tail) {
      std::copy(sums, sums + width, backward.tail + (key - (pass.last - pass.head.span + 1)) * width);
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

/// Prefetches the rows that the block uses at its end, where it retires the keys [first_key, last_key), and those that
/// the next block reads first.
template <typename Real>
HWY_INLINE void PrefetchBlock(const ScreeningBackward<Real>& backward, int64_t first, int64_t count, int64_t first_key,
                              int64_t last_key) {
  const ScreeningPass<Real>& pass = backward.pass;
  const int64_t K = pass.head.key_dim, V = pass.head.value_dim, row = first - pass.query_origin;
  if (pass.gate.data != nullptr) {
    PrefetchRows<Access::kRead>(pass.gate, row, row + count, V);
    PrefetchRows<Access::kWrite>(backward.dgate, row, row + count, V);
  }
  PrefetchRows<Access::kRead>(pass.out, row, row + count, V);
  PrefetchRows<Access::kWrite>(backward.dq, row, row + count, K);
  const int64_t retired = first_key - pass.key_origin, end = last_key - pass.key_origin;
  PrefetchRows<Access::kWrite>(backward.dk, retired, end, K);
  PrefetchRows<Access::kWrite>(backward.dv, retired, end, V);
  PrefetchNextBlock(pass, first, count);
}

/// The queries [first, first + count) of a pass: h once more, and the accepted pairs. The pairs of a panel are recorded
/// one by one, or the panel is marked as dense.
template <typename Real>
class Block {
 public:
  Block(ScreeningBackward<Real>& backward, const BackwardScratch<Real>& scratch, int64_t first, int64_t count)
      : backward_(backward),
        pass_(backward.pass),
        scratch_(scratch),
        first_(first),
        count_(count),
        first_tile_(FirstVisibleTile(pass_, first)),
        slots_(first_tile_, pass_.ring.capacity),
        capacity_(accepted_capacity(pass_.head.span)) {}

  HWY_INLINE void screen(ScreenedPanel<Real>& screened) {
    const int64_t value_width = padded(pass_.head.value_dim);
    std::fill(scratch_.h, scratch_.h + count_ * value_width, Real{0});
    std::fill(accepted_count_, accepted_count_ + count_, 0);
    std::fill_n(backward_.panels, panel(first_ + count_ - 1) + 1, PanelTally{});
    const auto slots_of = [&](int64_t key) HWY_ATTR { return PanelSlots(slots_, key, pass_.ring.capacity); };
    const int64_t indexed = AcceptIndexedKeys<true>(
        pass_, scratch_.q, first_, count_, slots_,
        [&](int64_t i, uint64_t accepted, const Real* weight, const Real* shortfall, int64_t key) HWY_ATTR {
          AddAccepted(pass_, accepted, weight, slots_of(key), scratch_.h + i * value_width);
          backward_.panels[panel(key)].add(accepted);
          record(i, accepted, shortfall, key);
        });
    CountPairs(pass_, first_, count_, indexed);
    for (int64_t key = std::max(indexed, first_tile_); key < first_ + count_; key += kPanelKeys) {
      ScreenPanel<true>(pass_, scratch_.q, first_, count_, key, slots_, screened);
      AddPanel(pass_, screened, count_, slots_of(key), scratch_.h);
      PanelTally& tally = backward_.panels[panel(key)];
      for (int64_t i = 0; i < count_; ++i) tally.add(screened.accepted[i]);
      tally.dense = IsDense(pass_, tally, slots_of(key), count_);
      for (int64_t i = 0; i < count_ && !tally.dense; ++i) {
        record(i, screened.accepted[i], screened.shortfall + i * kPanelKeys, key);
      }
    }
    for (int64_t key = 0; key < indexed; key += kPanelKeys) {
      PanelTally& tally = backward_.panels[panel(key)];
      tally.dense = IsDense(pass_, tally, slots_of(key), count_);
    }
    if (indexed > 0) remove_dense();
  }

  /// dq, and what the block adds to the sums of keys and scalars. dh must be known.
  HWY_INLINE void add_gradients() {
    std::fill_n(scratch_.dq, kBlockQueries * padded(pass_.head.key_dim), Real{0});
    ScalarSums scalars;
    PairsBackward<Real> pairs(backward_, scratch_, first_, slots_, scalars);
    for (int64_t i = 0; i < count_; ++i) {
      pairs.add(i, accepted_count_[i], backward_.accepted_shortfall + i * capacity_,
                backward_.accepted_key + i * capacity_);
    }
    pairs.finish();
    DensePanels<Real> dense(backward_, scratch_, first_, count_, scalars);
    for (int64_t key = first_tile_; key < first_ + count_; key += kPanelKeys) {
      const PanelTally& tally = backward_.panels[panel(key)];
      if (!tally.dense) continue;
      dense.add(key, tally.wanted, PanelSlots(slots_, key, pass_.ring.capacity));
      if (pass_.counts != nullptr) pass_.counts->dense += tally.accepted;
    }
    backward_.d_accept += 2.0 * static_cast<double>(pass_.head.one_minus_r) * scalars.accept;
    backward_.d_softmask += scalars.softmask;
    backward_.d_mipe_step += scalars.mipe;
  }

 private:
  int64_t panel(int64_t key) const { return (key - first_tile_) / kPanelKeys; }

  HWY_INLINE void record(int64_t i, uint64_t accepted, const Real* HWY_RESTRICT shortfall, int64_t key) {
    accepted_count_[i] =
        RecordAccepted(accepted, shortfall, key, accepted_count_[i], backward_.accepted_shortfall + i * capacity_,
                       backward_.accepted_key + i * capacity_);
  }

  /// Removes pairs that the index found before their panel was marked as dense.
  HWY_INLINE void remove_dense() {
    for (int64_t i = 0; i < count_; ++i) {
      Real* shortfall = backward_.accepted_shortfall + i * capacity_;
      int32_t* key = backward_.accepted_key + i * capacity_;
      int64_t kept = 0;
      for (int64_t a = 0; a < accepted_count_[i]; ++a) {
        shortfall[kept] = shortfall[a];
        key[kept] = key[a];
        kept += backward_.panels[panel(key[a])].dense ? 0 : 1;
      }
      accepted_count_[i] = kept;
    }
  }

  ScreeningBackward<Real>& backward_;
  const ScreeningPass<Real>& pass_;
  const BackwardScratch<Real>& scratch_;
  const int64_t first_, count_, first_tile_;
  const Slots slots_;
  const int64_t capacity_;
  int64_t accepted_count_[kBlockQueries];
};

template <typename Real>
void Backward(ScreeningBackward<Real>& backward) {
  const ScreeningPass<Real>& pass = backward.pass;
  const int64_t key_width = padded(pass.head.key_dim), value_width = padded(pass.head.value_dim);
  BackwardScratch<Real> scratch(pass);
  HWY_ALIGN Real factor[kBlockQueries], slope[kBlockQueries];
  double query_norm[kBlockQueries];
  ScreenedPanel<Real> screened;
  Rotations<Real> rotations(pass.head);
  int64_t packed = pass.packed, retired = pass.packed;

  for (int64_t first = pass.first; first < pass.last; first += pass.block) {
    const int64_t count = std::min(pass.block, pass.last - first);
    const int64_t unseen = std::max(retired, first + count - pass.head.span + 1);
    PrefetchBlock(backward, first, count, retired, unseen);
    PackKeys(pass, packed, first + count, rotations, scratch.q);
    packed = first + count;
    LoadQueries(pass, first, count, rotations, scratch.q, query_norm);
    Block<Real> block(backward, scratch, first, count);
    block.screen(screened);
    TanhNormFactors(pass.head, scratch.h, count, factor, slope);
    for (int64_t i = 0; i < count; ++i) {
      FinishBackward(backward, first + i, factor[i], slope[i], scratch.h + i * value_width,
                     scratch.dh + i * value_width, scratch.gate_row, scratch.result_row);
    }
    block.add_gradients();
    for (int64_t i = 0; i < count; ++i) {
      FinishQuery(backward, rotations, first + i, scratch.q + i * key_width, query_norm[i], scratch.dq + i * key_width);
    }
    RetireKeys(backward, retired, unseen, /*to_tail=*/false);
    retired = unseen;
  }
  RetireKeys(backward, retired, pass.last, /*to_tail=*/backward.tail != nullptr);
}

template <typename Real>
void Finish(const ScreeningBackward<Real>& backward, int64_t end, const Real* tail, const Real* halo) {
  const ScreeningPass<Real>& pass = backward.pass;
  BackwardScratch<Real> scratch(pass);
  const int64_t width = padded(pass.head.key_dim) + padded(pass.head.value_dim);
  const int64_t first = end - pass.head.span + 1;
  Real* sums = scratch.dq;
  const auto load_unit = [](const Rows& rows, int64_t index, int64_t size, Real* HWY_RESTRICT row) HWY_ATTR {
    LoadRow(rows, index, size, row);
    return UnitRow<Real>{row, Normalize(row, padded(size))};
  };
  Rotations<Real> rotations(pass.head);
  for (int64_t key = first; key < end; ++key) {
    rotations.cover(key, key + 1);
    const Real *before = tail + (key - first) * width, *after = halo + (key - first) * width;
    for (int64_t d = 0; d < width; ++d) sums[d] = before[d] + after[d];
    const int64_t index = key - pass.key_origin;
    FinishKey(
        backward, rotations, key, sums,
        [&]() HWY_ATTR {
          const UnitRow<Real> unit = load_unit(pass.k, index, pass.head.key_dim, scratch.key_row);
          rotations.rotate(key, scratch.key_row);
          return unit;
        },
        [&]() HWY_ATTR { return load_unit(pass.v, index, pass.head.value_dim, scratch.value_row); });
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
