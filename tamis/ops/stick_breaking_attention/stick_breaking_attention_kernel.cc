// Stick-breaking attention, forward and backward. The derivation is in README.md.

#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/stick_breaking_attention/stick_breaking_attention_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/kernels/attention-inl.h"
#include "tamis/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace {

using Lanes = hn::Vec<LaneTag<float>>;
using SizedLanes = SizedVec<LaneTag<float>>;

inline constexpr float kHidden = -HUGE_VALF;  // score of a masked pair: its sigmoid is 0
/// A shorter stick is used up: 2^24 times the least normal number, so that a part of it that rounding would not lose is
/// normal, too. A stick whose parts were all treated as zeros would never end.
inline constexpr float kNothing = 0x1p-102f;

/// What is left of each query's stick: rest - lost, where `lost` is what rounding has not taken off yet (Kahan).
struct Sticks {
  HWY_ALIGN float rest[kQueryBlock];
  HWY_ALIGN float lost[kQueryBlock];

  /// Lanes without a query have no stick.
  explicit Sticks(int64_t count) {
    std::fill_n(rest, kQueryBlock, 0.0f);
    std::fill_n(rest, count, 1.0f);
    std::fill_n(lost, kQueryBlock, 0.0f);
  }
};

enum class Sigmoids { kForgotten, kKept };

/// Scores of kCount vectors of lanes -> weights, key by key from the newest to the oldest:
///   e = exp(-|z|),  sigmoid(z) = 1 / (1 + e) or e / (1 + e),  weight = sigmoid(z) rest,  rest <- rest (1 - sigmoid(z))
/// The new rest is rest - weight as long as that keeps its digits, for z > 0 the product.
template <Sigmoids kSigmoids, int kCount>
HWY_INLINE void BreakLanes(const PanelPart& part, float* scores, float* sigmoids, float* rests, float* losses) {
  const LaneTag<float> d;
  const auto one = hn::Set(d, 1.0f), zero = hn::Zero(d);
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<float>());
  SizedLanes rest[kCount], lost[kCount];
  for (int i = 0; i < kCount; ++i) rest[i] = hn::Load(d, rests + i * kWidth);
  for (int i = 0; i < kCount; ++i) lost[i] = hn::Load(d, losses + i * kWidth);
  for (int64_t row = part.end - 1; row >= part.begin; --row) {
    float* at = scores + row * kQueryBlock;
    SizedLanes z[kCount], e[kCount], inverse[kCount];
    for (int i = 0; i < kCount; ++i) z[i] = hn::LoadU(d, at + i * kWidth);
    for (int i = 0; i < kCount; ++i) e[i] = hn::Or(Lanes(z[i]), hn::SignBit(d));  // -|z|
    ExpOfNonPositive(d, e);
    for (int i = 0; i < kCount; ++i) inverse[i] = hn::Div(one, hn::Add(one, e[i]));
    for (int i = 0; i < kCount; ++i) {
      const auto smaller = hn::Mul(e[i], inverse[i]);
      const auto positive = hn::Lt(zero, z[i]);
      const auto sigmoid = hn::IfThenElse(positive, inverse[i], smaller);
      const auto weight = hn::Mul(sigmoid, rest[i]);
      const auto take = hn::Add(weight, lost[i]);
      const auto left = hn::Sub(rest[i], take);
      lost[i] = hn::IfThenZeroElse(positive, hn::Sub(take, hn::Sub(rest[i], left)));
      rest[i] = hn::IfThenElse(positive, hn::Mul(rest[i], smaller), left);
      hn::StoreU(weight, d, at + i * kWidth);
      if constexpr (kSigmoids == Sigmoids::kKept) {
        hn::StoreU(sigmoid, d, sigmoids + row * kQueryBlock + i * kWidth);
      }
    }
  }
  for (int i = 0; i < kCount; ++i) {
    const Lanes rest_i = rest[i], lost_i = lost[i];
    const auto nothing = hn::Lt(rest_i, hn::Set(d, kNothing));
    hn::Store(hn::IfThenZeroElse(nothing, rest_i), d, rests + i * kWidth);
    hn::Store(hn::IfThenZeroElse(nothing, lost_i), d, losses + i * kWidth);
  }
}

/// Scores of a panel -> weights.
template <Sigmoids kSigmoids>
HWY_INLINE void BreakSticks(const PanelPart& part, int64_t lanes, float* scores, float* sigmoids, Sticks& sticks) {
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<float>());
  constexpr int kMost = kWidth == 16 ? 4 : 2;  // as many as fit into registers
  int64_t lane = 0;
  for (; lane + kMost * kWidth <= lanes; lane += kMost * kWidth) {
    BreakLanes<kSigmoids, kMost>(part, scores + lane, sigmoids + lane, sticks.rest + lane, sticks.lost + lane);
  }
  for (; lane < lanes; lane += kWidth) {
    BreakLanes<kSigmoids, 1>(part, scores + lane, sigmoids + lane, sticks.rest + lane, sticks.lost + lane);
  }
}

/// True when every older key of every query would weigh exactly 0: weights and rests are products with a rest of 0.
HWY_INLINE bool NothingIsLeft(const Sticks& sticks, int64_t lanes) {
  const LaneTag<float> d;
  for (int64_t lane = 0; lane < lanes; lane += hn::MaxLanes(d)) {
    if (!hn::AllTrue(d, hn::Eq(hn::Load(d, sticks.rest + lane), hn::Zero(d)))) return false;
  }
  return true;
}

/// The panels that a block's queries see, from the newest to the oldest.
struct Panels {
  int64_t first_key, end_key, newest, oldest;

  Panels(const Visibility& visibility, const QueryBlock& block)
      : first_key(block.first_key(visibility)), end_key(block.end_key(visibility)) {
    const bool any = first_key < end_key;
    oldest = any ? first_key / kPanelKeys * kPanelKeys : 0;
    newest = any ? (end_key - 1) / kPanelKeys * kPanelKeys : -kPanelKeys;
  }
};

void Forward(const StickBreakingForward& work) {
  const QueryBlock& block = work.block;
  const PackedKeys& packed = work.packed;
  const int64_t key_width = padded(packed.key_dim), value_width = padded(packed.value_dim), lanes = block.lanes();
  const BlockRows q(work.scratch, packed.key_dim);
  float* out = work.scratch + query_scratch(packed.key_dim);
  float* scores = out + kQueryBlock * value_width;
  HWY_ALIGN float factor[kQueryBlock], document_of_lane[kQueryBlock];
  Sticks sticks(block.count);
  std::fill(out, out + block.count * value_width, 0.0f);

  const int64_t row = block.first - work.query_origin;
  std::fill_n(factor, kQueryBlock, work.scale);
  LoadBlock(work.q, row, block.count, factor, q);
  const float* document = LaneDocuments(work.visibility, block, document_of_lane);
  const Panels panels(work.visibility, block);
  for (int64_t panel = panels.newest; panel >= panels.oldest; panel -= kPanelKeys) {
    const PanelPart part = VisiblePart(work.visibility, block, panels.first_key, panels.end_key, panel);
    ScorePanel(packed.key(panel), key_width, part, q, block.count, scores);
    if (!part.whole) HidePairs(work.visibility, block, panel, part, document, kHidden, scores);
    BreakSticks<Sigmoids::kForgotten>(part, lanes, scores, scores, sticks);
    Multiply<Sum::kAdd>(block.count, value_width, part.end - part.begin,
                        {scores + part.begin * kQueryBlock, 1, kQueryBlock},
                        {packed.value(panel + part.begin), value_width}, {out, value_width});
    if (work.end_early && NothingIsLeft(sticks, lanes)) break;
  }
  for (int64_t lane = 0; lane < block.count; ++lane) {
    StoreRow(out + lane * value_width, packed.value_dim, work.out, row + lane);
    work.remainder.data[(row + lane) * work.remainder.stride] = sticks.rest[lane] - sticks.lost[lane];
  }
}

/// sum_j weight_j da_j over the keys so far, one for each lane.
struct OlderSum {
  HWY_ALIGN float sum[kQueryBlock] = {};
  HWY_ALIGN float excess[kQueryBlock] = {};  // of the sum beyond the exact one
};

/// Products of gradients and values -> gradients of scores, key by key from the oldest to the newest:
///   older <- older + weight da,  dz = weight da - sigmoid(z) older
/// `older` begins with what the remainder hands on. A panel is summed by itself, and panels are added with
/// compensation: an error of the sum would reach all newer keys.
HWY_INLINE void ScoreGradients(const PanelPart& part, int64_t lanes, const float* weights, const float* sigmoids,
                               float* gradients, OlderSum& older) {
  const LaneTag<float> d;
  for (int64_t lane = 0; lane < lanes; lane += hn::MaxLanes(d)) {
    const auto before = hn::Load(d, older.sum + lane);
    auto panel = hn::Neg(hn::Load(d, older.excess + lane));
    for (int64_t row = part.begin; row < part.end; ++row) {
      const int64_t at = row * kQueryBlock + lane;
      const auto own = hn::Mul(hn::LoadU(d, weights + at), hn::LoadU(d, gradients + at));
      panel = hn::Add(panel, own);
      hn::StoreU(hn::NegMulAdd(hn::LoadU(d, sigmoids + at), hn::Add(before, panel), own), d, gradients + at);
    }
    const auto sum = hn::Add(before, panel);
    hn::Store(hn::Sub(hn::Sub(sum, before), panel), d, older.excess + lane);
    hn::Store(sum, d, older.sum + lane);
  }
}

void BackwardOfBlock(const StickBreakingBackward& work, const QueryBlock& block) {
  constexpr int64_t kPanel = kPanelKeys * kQueryBlock;
  const PackedKeys& packed = work.packed;
  const int64_t key_width = padded(packed.key_dim), value_width = padded(packed.value_dim), lanes = block.lanes();
  const BlockRows q(work.scratch, packed.key_dim);
  const BlockRows grad(work.scratch + query_scratch(packed.key_dim), packed.value_dim);
  float* dq = work.scratch + query_scratch(packed.key_dim) + query_scratch(packed.value_dim);
  float* gradients = dq + kQueryBlock * key_width;
  float* all_weights = gradients + kPanel;  // of every panel, followed by the sigmoids in the same layout
  float* all_sigmoids = all_weights + whole_panels(work.last) * kQueryBlock;
  HWY_ALIGN float factor[kQueryBlock], document_of_lane[kQueryBlock];

  const int64_t row = block.first - work.query_origin;
  std::fill_n(factor, kQueryBlock, work.scale);
  LoadBlock(work.q, row, block.count, factor, q);
  LoadBlock(work.grad, row, block.count, nullptr, grad);
  std::fill(dq, dq + block.count * key_width, 0.0f);
  const float* document = LaneDocuments(work.visibility, block, document_of_lane);
  const Panels panels(work.visibility, block);
  const auto part_of = [&](int64_t panel) {
    return VisiblePart(work.visibility, block, panels.first_key, panels.end_key, panel);
  };

  // As forward: weights and sigmoids, from the newest key to the oldest.
  Sticks sticks(block.count);
  int64_t oldest = panels.newest + kPanelKeys;  // the oldest panel so far
  while (oldest > panels.oldest && !(work.end_early && NothingIsLeft(sticks, lanes))) {
    oldest -= kPanelKeys;
    const PanelPart part = part_of(oldest);
    float* weights = all_weights + oldest * kQueryBlock;
    ScorePanel(packed.key(oldest), key_width, part, q, block.count, weights);
    if (!part.whole) HidePairs(work.visibility, block, oldest, part, document, kHidden, weights);
    BreakSticks<Sigmoids::kKept>(part, lanes, weights, all_sigmoids + oldest * kQueryBlock, sticks);
  }
  // Back: the sum over older keys begins at the oldest.
  OlderSum older;
  for (int64_t lane = 0; lane < block.count; ++lane) {
    const float remainder = sticks.rest[lane] - sticks.lost[lane];
    older.sum[lane] = remainder * work.grad_remainder.data[(row + lane) * work.grad_remainder.stride];
  }
  for (int64_t panel = oldest; panel <= panels.newest; panel += kPanelKeys) {
    const PanelPart part = part_of(panel);
    const float* weights = all_weights + panel * kQueryBlock;
    PanelTimesBlock(packed.value(panel), value_width, part, grad, lanes, gradients);
    ScoreGradients(part, lanes, weights, all_sigmoids + panel * kQueryBlock, gradients, older);
    AddPanelGradients(packed, panel, part, block.count, q, grad, weights, gradients, dq, work.dk, work.dv);
  }
  for (int64_t lane = 0; lane < block.count; ++lane) {
    float* d_row = dq + lane * key_width;
    ScaleRow(work.scale, d_row, key_width);
    StoreRow(d_row, packed.key_dim, work.dq, row + lane);
  }
}

void Backward(const StickBreakingBackward& work) {
  for (int64_t first = work.first; first < work.last; first += kQueryBlock) {
    BackwardOfBlock(work, {first, std::min(kQueryBlock, work.last - first)});
  }
}

}  // namespace
}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(Forward);
HWY_EXPORT(Backward);

void stick_breaking_forward(const StickBreakingForward& work) {
  HWY_DYNAMIC_DISPATCH(Forward)(work);
}

void stick_breaking_backward(const StickBreakingBackward& work) {
  HWY_DYNAMIC_DISPATCH(Backward)(work);
}

}  // namespace tamis::kernels
#endif
