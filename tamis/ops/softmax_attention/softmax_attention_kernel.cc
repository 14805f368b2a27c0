// Softmax attention, forward and backward. The derivation is in README.md.

#include "tamis/ops/softmax_attention/softmax_attention_kernel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tamis/ops/softmax_attention/softmax_attention_kernel.cc"
#include "hwy/foreach_target.h"
// After foreach_target.h, which includes this file once per instruction set:
#include "tamis/kernels/attention-inl.h"
#include "tamis/kernels/math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {

inline constexpr float kHidden = -HUGE_VALF;  // score of a masked pair: its exponential is 0
inline constexpr float kNoScoreYet = -1e38f;  // finite: kHidden - kNoScoreYet is kHidden, not NaN

/// 1 / sum of exponentials; 0 if the query sees no key.
HWY_INLINE float InverseSum(float sum) {
  return sum == 0 ? 0 : 1 / sum;
}

/// What each lane's query has gathered so far.
struct OnlineSoftmax {
  HWY_ALIGN float largest[kQueryBlock];
  HWY_ALIGN float sum[kQueryBlock];
  HWY_ALIGN float shrink[kQueryBlock];  // the factor of all earlier panels after the newest one
};

/// Turns the scores of rows [begin, end) into exponentials relative to the largest score so far.
HWY_INLINE void Exponentials(const PanelPart& part, int64_t lanes, float* scores, OnlineSoftmax& online) {
  const LaneTag<float> d;
  for (int64_t lane = 0; lane < lanes; lane += hn::MaxLanes(d)) {
    float* column = scores + lane;
    const auto before = hn::Load(d, online.largest + lane);
    auto largest = before, other = before;
    int64_t row = part.begin;
    for (; row + 2 <= part.end; row += 2) {
      largest = hn::Max(largest, hn::LoadU(d, column + row * kQueryBlock));
      other = hn::Max(other, hn::LoadU(d, column + (row + 1) * kQueryBlock));
    }
    if (row < part.end) largest = hn::Max(largest, hn::LoadU(d, column + row * kQueryBlock));
    largest = hn::Max(largest, other);
    auto sum = hn::Zero(d);
    for (row = part.begin; row < part.end; ++row) {
      float* at = column + row * kQueryBlock;
      const auto weight = ExpOfNonPositive(d, hn::Sub(hn::LoadU(d, at), largest));
      hn::StoreU(weight, d, at);
      sum = hn::Add(sum, weight);
    }
    const auto shrink = ExpOfNonPositive(d, hn::Sub(before, largest));
    hn::Store(hn::MulAdd(hn::Load(d, online.sum + lane), shrink, sum), d, online.sum + lane);
    hn::Store(largest, d, online.largest + lane);
    hn::Store(shrink, d, online.shrink + lane);
  }
}

/// What each query's row is multiplied by, so that scores need no scale of their own.
HWY_INLINE void QueryFactors(float scale, const float* query_scale, int64_t first, int64_t count, float* factor) {
  for (int64_t lane = 0; lane < count; ++lane) {
    factor[lane] = query_scale == nullptr ? scale : scale * query_scale[first + lane];
  }
}

/// Prefetches the keys kAhead rows further on and the values of this part: for a single query, memory latency
/// dominates.
HWY_INLINE void PrefetchPanel(const PackedKeys& packed, int64_t panel, const PanelPart& part) {
  constexpr int64_t kAhead = 32;  // keys
  const auto row_bytes = [&](int64_t dim) { return (part.end - part.begin) * padded(dim) * int64_t{sizeof(float)}; };
  Prefetch<Access::kRead>(packed.key(panel + part.begin + kAhead), row_bytes(packed.key_dim));
  Prefetch<Access::kRead>(packed.value(panel + part.begin), row_bytes(packed.value_dim));
}

/// Computes the result of a single query, with one key per lane instead of one query per lane.
void ForwardOne(const SoftmaxForward& work) {
  const LaneTag<float> d;
  const QueryBlock& block = work.block;
  const PackedKeys& packed = work.packed;
  const int64_t key_width = padded(packed.key_dim), value_width = padded(packed.value_dim);
  const int64_t row = block.first - work.query_origin;
  float* const q = work.scratch;
  float* const out = q + key_width;
  HWY_ALIGN float scores[kPanelKeys];
  float factor, largest = kNoScoreYet, sum = 0;
  QueryFactors(work.scale, work.query_scale, row, 1, &factor);
  LoadRow(work.q, row, packed.key_dim, q);
  ScaleRow(factor, q, key_width);
  std::fill_n(out, value_width, 0.0f);
  const int64_t first_key = block.first_key(work.visibility), end_key = block.end_key(work.visibility);
  for (int64_t panel = first_key / kPanelKeys * kPanelKeys; panel < end_key; panel += kPanelKeys) {
    const PanelPart part = VisiblePart(work.visibility, block, first_key, end_key, panel);
    PrefetchPanel(packed, panel, part);
    std::fill(scores, scores + part.begin, kHidden);
    std::fill(scores + part.end, scores + kPanelKeys, kHidden);
    EachTimesRow(packed.key(panel), key_width, part, q,
                 [&](int64_t key, auto product) { scores[key] = hn::GetLane(product); });
    auto most = hn::Set(d, largest);
    for (int64_t key = 0; key < kPanelKeys; key += hn::MaxLanes(d)) most = hn::Max(most, hn::Load(d, scores + key));
    most = hn::MaxOfLanes(d, most);
    auto added = hn::Zero(d);
    for (int64_t key = 0; key < kPanelKeys; key += hn::MaxLanes(d)) {
      const auto weight = ExpOfNonPositive(d, hn::Sub(hn::Load(d, scores + key), most));
      hn::Store(weight, d, scores + key);
      added = hn::Add(added, weight);
    }
    const float shrink = hn::GetLane(ExpOfNonPositive(d, hn::Sub(hn::Set(d, largest), most)));
    largest = hn::GetLane(most);
    sum = sum * shrink + hn::GetLane(hn::SumOfLanes(d, added));
    if (shrink != 1) ScaleRow(shrink, out, value_width);
    Multiply<Sum::kAdd>(1, value_width, part.end - part.begin, {scores + part.begin, kPanelKeys, 1},
                        {packed.value(panel + part.begin), value_width}, {out, value_width});
  }
  const float inverse = InverseSum(sum);
  ScaleRow(inverse, out, value_width);
  StoreRow(out, packed.value_dim, work.out, row);
  work.statistics[row] = {largest, inverse};
}

void Forward(const SoftmaxForward& work) {
  if (work.block.count == 1 && work.visibility.document == nullptr) return ForwardOne(work);
  const QueryBlock& block = work.block;
  const PackedKeys& packed = work.packed;
  const int64_t key_width = padded(packed.key_dim), value_width = padded(packed.value_dim), lanes = block.lanes();
  const BlockRows q(work.scratch, packed.key_dim);
  float* out = work.scratch + query_scratch(packed.key_dim);
  float* scores = out + kQueryBlock * value_width;
  HWY_ALIGN float factor[kQueryBlock], document_of_lane[kQueryBlock];
  OnlineSoftmax online;
  std::fill_n(online.largest, kQueryBlock, kNoScoreYet);
  std::fill_n(online.sum, kQueryBlock, 0.0f);
  std::fill(out, out + block.count * value_width, 0.0f);

  const int64_t row = block.first - work.query_origin;
  QueryFactors(work.scale, work.query_scale, row, block.count, factor);
  LoadBlock(work.q, row, block.count, factor, q);
  const float* document = LaneDocuments(work.visibility, block, document_of_lane);
  const int64_t first_key = block.first_key(work.visibility), end_key = block.end_key(work.visibility);
  for (int64_t panel = first_key / kPanelKeys * kPanelKeys; panel < end_key; panel += kPanelKeys) {
    const PanelPart part = VisiblePart(work.visibility, block, first_key, end_key, panel);
    ScorePanel(packed.key(panel), key_width, part, q, block.count, scores);
    if (!part.whole) HidePairs(work.visibility, block, panel, part, document, kHidden, scores);
    Exponentials(part, lanes, scores, online);
    for (int64_t lane = 0; lane < block.count; ++lane) {
      if (online.shrink[lane] != 1) ScaleRow(online.shrink[lane], out + lane * value_width, value_width);
    }
    Multiply<Sum::kAdd>(block.count, value_width, part.end - part.begin,
                        {scores + part.begin * kQueryBlock, 1, kQueryBlock},
                        {packed.value(panel + part.begin), value_width}, {out, value_width});
  }
  for (int64_t lane = 0; lane < block.count; ++lane) {
    const float inverse = InverseSum(online.sum[lane]);
    ScaleRow(inverse, out + lane * value_width, value_width);
    StoreRow(out + lane * value_width, packed.value_dim, work.out, row + lane);
    work.statistics[row + lane] = {online.largest[lane], inverse};
  }
}

/// What the gradient of a block's scores needs of each lane's query.
struct LaneGradients {
  HWY_ALIGN float largest[kQueryBlock] = {};
  HWY_ALIGN float inverse_sum[kQueryBlock] = {};
  HWY_ALIGN float mean[kQueryBlock] = {};   // sum_j p_j (dout . v_j)
  HWY_ALIGN float along[kQueryBlock] = {};  // result: sum_j ds_j (s_j - largest)
};

/// Scores -> weights; products of gradients and values -> gradients of scores: weight * (product - mean). Lanes without
/// a query get zeros.
HWY_INLINE void WeightsAndScoreGradients(const PanelPart& part, int64_t lanes, LaneGradients& of, float* weights,
                                         float* gradients) {
  const LaneTag<float> d;
  for (int64_t lane = 0; lane < lanes; lane += hn::MaxLanes(d)) {
    const auto largest = hn::Load(d, of.largest + lane), inverse_sum = hn::Load(d, of.inverse_sum + lane);
    const auto mean = hn::Load(d, of.mean + lane);
    auto along = hn::Zero(d);
    for (int64_t row = part.begin; row < part.end; ++row) {
      const int64_t at = row * kQueryBlock + lane;
      const auto below = hn::Sub(hn::LoadU(d, weights + at), largest);
      const auto weight = hn::Mul(ExpOfNonPositive(d, below), inverse_sum);
      hn::StoreU(weight, d, weights + at);
      const auto gradient = hn::Mul(weight, hn::Sub(hn::LoadU(d, gradients + at), mean));
      hn::StoreU(gradient, d, gradients + at);
      // A masked score is -infinity: its product with 0 would be NaN.
      const auto term = hn::Mul(gradient, below);
      along = hn::Add(along, hn::IfThenZeroElse(hn::Eq(gradient, hn::Zero(d)), term));
    }
    hn::Store(hn::Add(hn::Load(d, of.along + lane), along), d, of.along + lane);
  }
}

/// sum_v out * grad of every lane, in the order in which Multiply sums: where a query sees one key, whose weight is 1
/// and whose value is the result, the gradient of its score is exactly 0.
HWY_INLINE void MeanGradients(const BlockRows& out, const BlockRows& grad, int64_t lanes, float* mean) {
  const LaneTag<float> d;
  for (int64_t lane = 0; lane < lanes; lane += hn::MaxLanes(d)) {
    auto sum = hn::Zero(d);
    for (int64_t v = 0; v < out.dim; ++v) {
      const int64_t at = v * kQueryBlock + lane;
      sum = hn::MulAdd(hn::LoadU(d, out.transposed + at), hn::LoadU(d, grad.transposed + at), sum);
    }
    hn::Store(sum, d, mean + lane);
  }
}

void BackwardOfBlock(const SoftmaxBackward& work, const QueryBlock& block) {
  const PackedKeys& packed = work.packed;
  const int64_t key_width = padded(packed.key_dim), value_width = padded(packed.value_dim), lanes = block.lanes();
  const BlockRows q(work.scratch, packed.key_dim);
  const BlockRows grad(work.scratch + query_scratch(packed.key_dim), packed.value_dim);
  const BlockRows out(grad.rows + query_scratch(packed.value_dim), packed.value_dim);
  float* dq = out.rows + query_scratch(packed.value_dim);
  float* key_row = dq + kQueryBlock * key_width;
  float* weights = key_row + key_width;
  float* gradients = weights + kPanelKeys * kQueryBlock;
  HWY_ALIGN float factor[kQueryBlock], document_of_lane[kQueryBlock];
  LaneGradients of;

  const int64_t row = block.first - work.query_origin;
  QueryFactors(work.scale, work.query_scale, row, block.count, factor);
  LoadBlock(work.q, row, block.count, factor, q);
  LoadBlock(work.grad, row, block.count, nullptr, grad);
  for (int64_t lane = 0; lane < block.count; ++lane) {
    of.largest[lane] = work.statistics[row + lane].largest;
    of.inverse_sum[lane] = work.statistics[row + lane].inverse_sum;
  }
  LoadBlock(work.out, row, block.count, nullptr, out);
  MeanGradients(out, grad, lanes, of.mean);
  std::fill(dq, dq + block.count * key_width, 0.0f);
  const float* document = LaneDocuments(work.visibility, block, document_of_lane);
  const int64_t first_key = block.first_key(work.visibility), end_key = block.end_key(work.visibility);
  for (int64_t panel = first_key / kPanelKeys * kPanelKeys; panel < end_key; panel += kPanelKeys) {
    const PanelPart part = VisiblePart(work.visibility, block, first_key, end_key, panel);
    ScorePanel(packed.key(panel), key_width, part, q, block.count, weights);
    if (!part.whole) HidePairs(work.visibility, block, panel, part, document, kHidden, weights);
    PanelTimesBlock(packed.value(panel), value_width, part, grad, lanes, gradients);
    WeightsAndScoreGradients(part, lanes, of, weights, gradients);
    AddPanelGradients(packed, panel, part, block.count, q, grad, weights, gradients, dq, work.dk, work.dv);
  }
  for (int64_t lane = 0; lane < block.count; ++lane) {
    float* d_row = dq + lane * key_width;
    if (work.d_query_scale != nullptr) {
      // sum_j ds_j s_j / c, or for c = 0 the same from q: as precise as the scores, which q . dq is not.
      const float c = work.query_scale[row + lane];
      LoadRow(work.q, row + lane, packed.key_dim, key_row);
      work.d_query_scale[row + lane] = c != 0 ? of.along[lane] / c : work.scale * Dot(key_row, d_row, key_width);
    }
    ScaleRow(factor[lane], d_row, key_width);
    StoreRow(d_row, packed.key_dim, work.dq, row + lane);
  }
}

void Backward(const SoftmaxBackward& work) {
  for (int64_t first = work.first; first < work.last; first += kQueryBlock) {
    BackwardOfBlock(work, {first, std::min(kQueryBlock, work.last - first)});
  }
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tamis::kernels {

HWY_EXPORT(Forward);
HWY_EXPORT(Backward);

void softmax_forward(const SoftmaxForward& work) {
  HWY_DYNAMIC_DISPATCH(Forward)(work);
}

void softmax_backward(const SoftmaxBackward& work) {
  HWY_DYNAMIC_DISPATCH(Backward)(work);
}

}  // namespace tamis::kernels
#endif
