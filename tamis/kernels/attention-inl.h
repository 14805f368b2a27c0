// Blocks of queries in lanes, scores of a panel of keys, and masks. Included once per instruction set.

#include "tamis/kernels/attention.h"

#if defined(TAMIS_KERNELS_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_KERNELS_ATTENTION_INL_H_
#undef TAMIS_KERNELS_ATTENTION_INL_H_
#else
#define TAMIS_KERNELS_ATTENTION_INL_H_
#endif

#include "hwy/highway.h"
#include "tamis/kernels/products-inl.h"
#include "tamis/kernels/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// A block of rows in float32 as rows [kQueryBlock][padded(dim)] and transposed [dim][kQueryBlock]; zeros fill both.
struct BlockRows {
  float* rows;
  float* transposed;
  int64_t dim;

  BlockRows(float* scratch, int64_t size)
      : rows(scratch), transposed(scratch + kQueryBlock * padded(size)), dim(size) {}
  float* row(int64_t lane) const { return rows + lane * padded(dim); }
};

HWY_INLINE void ScaleRow(float factor, float* HWY_RESTRICT row, int64_t width) {
  const LaneTag<float> d;
  const auto scale = hn::Set(d, factor);
  for (int64_t i = 0; i < width; i += hn::MaxLanes(d)) hn::StoreU(hn::Mul(hn::LoadU(d, row + i), scale), d, row + i);
}

HWY_INLINE void Transpose(const BlockRows& block, int64_t lanes) {
  for (int64_t lane = 0; lane < lanes; ++lane) {
    const float* HWY_RESTRICT row = block.row(lane);
    for (int64_t d = 0; d < block.dim; ++d) block.transposed[d * kQueryBlock + lane] = row[d];
  }
}

/// Rows [first, first + count) of `in`, row i times factor[i]; factor null: as they are.
HWY_INLINE void LoadBlock(const Rows& in, int64_t first, int64_t count, const float* factor, const BlockRows& block) {
  const int64_t width = padded(block.dim), lanes = padded(count);
  for (int64_t lane = 0; lane < count; ++lane) {
    float* row = block.row(lane);
    LoadRow(in, first + lane, block.dim, row);
    if (factor != nullptr) ScaleRow(factor[lane], row, width);
  }
  std::fill(block.row(count), block.row(lanes), 0.0f);
  Transpose(block, lanes);
}

/// The part of a panel that some query of a block sees: rows [begin, end) of it.
struct PanelPart {
  int64_t begin, end;
  bool whole;  // every query of the block sees every key of it
};

HWY_INLINE PanelPart VisiblePart(const Visibility& visibility, const QueryBlock& block, int64_t first_key,
                                 int64_t end_key, int64_t panel) {
  PanelPart part;
  part.begin = std::max(first_key, panel) - panel;
  part.end = std::min(end_key, panel + kPanelKeys) - panel;
  const int64_t last = block.first + block.count - 1;
  const bool all_before = panel + part.end <= visibility.end_key(block.first);
  const bool all_recent = panel + part.begin >= visibility.first_key(last);
  part.whole = all_before && all_recent && visibility.document == nullptr;
  return part;
}

/// Rows of a part of a panel (keys or values, `stride` apart) times all rows of a block: out[row of the panel][lane].
HWY_INLINE void PanelTimesBlock(const float* panel, int64_t stride, const PanelPart& part, const BlockRows& block,
                                int64_t lanes, float* out) {
  Multiply<Sum::kReplace>(part.end - part.begin, lanes, block.dim, {panel + part.begin * stride, stride, 1},
                          {block.transposed, kQueryBlock}, {out + part.begin * kQueryBlock, kQueryBlock});
}

/// The same for a single row of the block: calls take(key, product) with each product in every lane of a vector.
template <typename Take>
HWY_INLINE void EachTimesRow(const float* panel, int64_t stride, const PanelPart& part, const float* row,
                             const Take& take) {
  const LaneTag<float> d;
  constexpr int64_t kRows = 4;  // that are multiplied together
  for (int64_t key = part.begin; key < part.end; key += kRows) {
    const int64_t rows = std::min(kRows, part.end - key);
    SizedVec<LaneTag<float>> sum[kRows] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    const float* at[kRows];
    for (int64_t i = 0; i < kRows; ++i) at[i] = panel + (key + std::min(i, rows - 1)) * stride;
    for (int64_t column = 0; column < stride; column += hn::MaxLanes(d)) {
      const auto x = hn::LoadU(d, row + column);
      for (int64_t i = 0; i < kRows; ++i) sum[i] = hn::MulAdd(hn::LoadU(d, at[i] + column), x, sum[i]);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const hn::Vec<LaneTag<float>> lanes = sum[i];
      take(key + i, hn::SumOfLanes(d, lanes));
    }
  }
}

/// The same in the layout of PanelTimesBlock; lanes without a query are zero.
HWY_INLINE void PanelTimesRow(const float* panel, int64_t stride, const PanelPart& part, const float* row, float* out) {
  const LaneTag<float> d;
  const auto first_lane = hn::FirstN(d, 1);
  EachTimesRow(panel, stride, part, row, [&](int64_t key, auto product) {
    float* const lanes = out + key * kQueryBlock;
    hn::StoreU(hn::IfThenElseZero(first_lane, product), d, lanes);
    for (int64_t lane = hn::MaxLanes(d); lane < kLanes; lane += hn::MaxLanes(d)) {
      hn::StoreU(hn::Zero(d), d, lanes + lane);
    }
  });
}

/// Scores of a part of a panel of keys for all queries of a block. Both passes get the same bits.
HWY_INLINE void ScorePanel(const float* panel, int64_t stride, const PanelPart& part, const BlockRows& q,
                           int64_t queries, float* scores) {
  if (queries == 1) return PanelTimesRow(panel, stride, part, q.rows, scores);
  PanelTimesBlock(panel, stride, part, q, padded(queries), scores);
}

/// Adds what follows from a panel's weights and gradients of scores, both [row of the panel][lane]:
/// dv += weights grad, dk += gradients q, dq += gradients^T keys.
HWY_INLINE void AddPanelGradients(const PackedKeys& packed, int64_t panel, const PanelPart& part, int64_t queries,
                                  const BlockRows& q, const BlockRows& grad, const float* weights,
                                  const float* gradients, float* dq, float* dk, float* dv) {
  const int64_t key_width = padded(packed.key_dim), value_width = padded(packed.value_dim);
  const int64_t keys = part.end - part.begin, begin = panel + part.begin;
  const float* first_weight = weights + part.begin * kQueryBlock;
  const float* first_gradient = gradients + part.begin * kQueryBlock;
  Multiply<Sum::kAdd>(keys, value_width, queries, {first_weight, kQueryBlock, 1}, {grad.rows, value_width},
                      {dv + begin * value_width, value_width});
  Multiply<Sum::kAdd>(keys, key_width, queries, {first_gradient, kQueryBlock, 1}, {q.rows, key_width},
                      {dk + begin * key_width, key_width});
  Multiply<Sum::kAdd>(queries, key_width, keys, {first_gradient, 1, kQueryBlock}, {packed.key(begin), key_width},
                      {dq, key_width});
}

/// Sets the scores of masked pairs to `hidden`. `document` is that of LaneDocuments.
HWY_INLINE void HidePairs(const Visibility& visibility, const QueryBlock& block, int64_t panel, const PanelPart& part,
                          const float* document, float hidden, float* scores) {
  const LaneTag<float> d;
  const hn::RebindToSigned<LaneTag<float>> integers;
  const int64_t strict = visibility.strict ? 1 : 0;
  const auto replacement = hn::Set(d, hidden);
  for (int64_t row = part.begin; row < part.end; ++row) {
    const int64_t key = panel + row;
    // Lanes [from, to) see the key: queries key + strict ... key + strict + window - 1.
    const int64_t from = std::clamp<int64_t>(key + strict - block.first, 0, kQueryBlock);
    const int64_t newest = key + strict - block.first;
    const int64_t to =
        visibility.window >= kNoWindow ? kQueryBlock : std::clamp<int64_t>(newest + visibility.window, 0, kQueryBlock);
    const auto below = hn::Set(integers, static_cast<int32_t>(from) - 1),
               high = hn::Set(integers, static_cast<int32_t>(to));
    for (int64_t lane = 0; lane < block.lanes(); lane += hn::MaxLanes(d)) {
      float* at = scores + row * kQueryBlock + lane;
      const auto number = hn::Iota(integers, static_cast<int32_t>(lane));
      auto sees = hn::RebindMask(d, hn::And(hn::Gt(number, below), hn::Lt(number, high)));
      if (document != nullptr) {
        const auto mine = hn::Set(d, visibility.document[key]);
        sees = hn::And(sees, hn::Eq(hn::LoadU(d, document + lane), mine));
      }
      hn::StoreU(hn::IfThenElse(sees, hn::LoadU(d, at), replacement), d, at);
    }
  }
}

/// The documents of a block's queries, one to a lane; null where there is one document.
HWY_INLINE const float* LaneDocuments(const Visibility& visibility, const QueryBlock& block, float* lanes) {
  if (visibility.document == nullptr) return nullptr;
  for (int64_t lane = 0; lane < kQueryBlock; ++lane) {
    lanes[lane] = lane < block.count ? visibility.document[block.first + lane] : -1.0f;
  }
  return lanes;
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set
