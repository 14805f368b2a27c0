// Attention over the keys that the threshold of alpha-entmax selects: lists of keys, and both passes but for the
// weights, which a mechanism gives. Included once per instruction set.

#include "tamis/ops/selection/selection_kernel.h"

#if defined(TAMIS_OPS_SELECTION_SELECTION_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_OPS_SELECTION_SELECTION_KERNEL_INL_H_
#undef TAMIS_OPS_SELECTION_SELECTION_KERNEL_INL_H_
#else
#define TAMIS_OPS_SELECTION_SELECTION_KERNEL_INL_H_
#endif

#include <bit>

#include "hwy/highway.h"
#include "tamis/kernels/attention-inl.h"
#include "tamis/ops/selection/selection_threshold_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// For the query of each lane a list of keys, newest first: positions, scores, weights and gradients. The numbers of a
/// lane begin at lane * stride.
struct KeyLists {
  int32_t* position;
  float* score;
  float* weight;    // may be the memory of score
  float* gradient;  // backward: of the weight, then of the score
  int64_t stride;
  int64_t count[kQueryBlock] = {};
};

/// A pair passes if score - offset > bound, in float32. Lanes without a query select nothing.
struct Thresholds {
  HWY_ALIGN float offset[kQueryBlock];
  HWY_ALIGN float bound[kQueryBlock];

  Thresholds() {
    std::fill_n(offset, kQueryBlock, 0.0f);
    std::fill_n(bound, kQueryBlock, HUGE_VALF);
  }
};

template <class Mask>
HWY_INLINE uint64_t BitsOf(Mask mask) {
  uint16_t bits = 0;
  hn::StoreMaskBits(LaneTag<float>(), mask, reinterpret_cast<uint8_t*>(&bits));
  return bits;
}

/// Records the pairs of a panel that pass, the newest key first. A NaN passes, so that it shows in the result.
HWY_INLINE void ListKeys(int64_t panel, const PanelPart& part, int64_t queries, const float* HWY_RESTRICT scores,
                         const Thresholds& bounds, KeyLists& lists) {
  const LaneTag<float> d;
  const int64_t lanes = padded(queries);
  const uint64_t with_query = ~uint64_t{0} >> (kQueryBlock - queries);  // other lanes have no list, even for a NaN
  int64_t end[kQueryBlock];                                             // of each lane's list
  for (int64_t lane = 0; lane < queries; ++lane) end[lane] = lane * lists.stride + lists.count[lane];
  for (int64_t row = part.end - 1; row >= part.begin; --row) {
    const float* HWY_RESTRICT row_scores = scores + row * kQueryBlock;
    uint64_t passed = 0;
    for (int64_t lane = 0; lane < lanes; lane += hn::MaxLanes(d)) {
      const auto excess = hn::Sub(hn::LoadU(d, row_scores + lane), hn::Load(d, bounds.offset + lane));
      passed |= BitsOf(hn::Not(hn::Le(excess, hn::Load(d, bounds.bound + lane)))) << lane;
    }
    for (passed &= with_query; passed != 0; passed &= passed - 1) {
      const int lane = std::countr_zero(passed);
      const int64_t at = end[lane]++;
      lists.score[at] = row_scores[lane];
      lists.position[at] = static_cast<int32_t>(panel + row);
    }
  }
  for (int64_t lane = 0; lane < queries; ++lane) lists.count[lane] = end[lane] - lane * lists.stride;
}

/// Keeps the keys of a list with score - offset > bound, in order; returns their number. Pads the scores again.
inline HWY_NOINLINE int64_t KeepKeys(float* score, int32_t* position, int64_t count, float offset, float bound) {
  const LaneTag<float> d;
  const hn::RebindToSigned<LaneTag<float>> integers;
  const auto origin = hn::Set(d, offset), limit = hn::Set(d, bound);
  int64_t kept = 0;
  for (int64_t i = 0; i < count; i += hn::MaxLanes(d)) {
    const auto scores = hn::LoadU(d, score + i);
    const auto positions = hn::LoadU(integers, position + i);
    const auto listed = hn::FirstN(d, static_cast<size_t>(count - i));
    const auto keep = hn::And(listed, hn::Not(hn::Le(hn::Sub(scores, origin), limit)));
    hn::StoreU(hn::Compress(scores, keep), d, score + kept);
    hn::StoreU(hn::Compress(positions, hn::RebindMask(integers, keep)), integers, position + kept);
    kept += static_cast<int64_t>(hn::CountTrue(d, keep));
  }
  PadScores(score, kept);
  return kept;
}

/// Candidate keys of the queries of a block while panels of keys are added. tau of some keys is at most tau of all
/// keys, so a key that it rejects stays rejected.
struct Candidates {
  static constexpr int64_t kLeast = 48;  // keys; shorter lists are not tightened

  Entmax entmax;
  KeyLists& lists;
  Thresholds bounds;
  int64_t limit[kQueryBlock];

  Candidates(const Entmax& entmax_in, KeyLists& lists_in, int64_t queries) : entmax(entmax_in), lists(lists_in) {
    std::fill_n(bounds.bound, queries, -HUGE_VALF);
    std::fill_n(limit, kQueryBlock, entmax.selects_all() ? INT64_MAX : kLeast);
  }

  /// Removes the keys that tau of the keys so far rejects from lists that have doubled.
  HWY_INLINE void Tighten(int64_t queries) {
    for (int64_t lane = 0; lane < queries; ++lane) {
      if (lists.count[lane] > limit[lane]) TightenLane(lane);
    }
  }

  /// Reduces a list to exactly the selected keys.
  HWY_INLINE SelectionStatistics Finish(int64_t lane) {
    if (lists.count[lane] == 0) return {0, 0};
    if (entmax.weights == Entmax::Weights::kPower) TightenLane(lane);  // powers in float64 are expensive
    const int64_t count = lists.count[lane];
    float* score = lists.score + lane * lists.stride;
    PadScores(score, count);
    const float largest = Largest({score, count});
    const auto tau =
        static_cast<float>(Threshold(entmax, {score, count}, largest, Start(lane, largest), Precision::kFull));
    lists.count[lane] = KeepKeys(score, lists.position + lane * lists.stride, count, largest, entmax.bound(tau));
    return {largest, tau};
  }

 private:
  HWY_INLINE double Start(int64_t lane, float largest) const {
    return std::max(-1.0, static_cast<double>(bounds.bound[lane]) - largest);
  }

  HWY_NOINLINE void TightenLane(int64_t lane) {
    const int64_t count = lists.count[lane];
    float* score = lists.score + lane * lists.stride;
    PadScores(score, count);
    const float largest = Largest({score, count});
    const double tau = Threshold(entmax, {score, count}, largest, Start(lane, largest), Precision::kRough);
    const float bound = static_cast<float>(tau) - RoughError(entmax, largest);
    lists.count[lane] = KeepKeys(score, lists.position + lane * lists.stride, count, largest, bound);
    bounds.bound[lane] = largest + bound;
    limit[lane] = std::max(kLeast, 2 * lists.count[lane]);
  }
};

/// Lists the keys of a block, panel by panel from the newest; calls panel_done() after each. Scores are (alpha - 1) z.
template <class PanelDone>
HWY_INLINE void ListPanels(const PackedKeys& packed, const Visibility& visibility, const QueryBlock& block,
                           const BlockRows& q, float* scores, const Thresholds& bounds, KeyLists& lists,
                           const PanelDone& panel_done) {
  HWY_ALIGN float document_of_lane[kQueryBlock];
  const float* document = LaneDocuments(visibility, block, document_of_lane);
  const int64_t first_key = block.first_key(visibility), end_key = block.end_key(visibility);
  const int64_t first_tile = first_key / kPanelKeys * kPanelKeys;
  for (int64_t panel = whole_panels(end_key) - kPanelKeys; panel >= first_tile; panel -= kPanelKeys) {
    const PanelPart part = VisiblePart(visibility, block, first_key, end_key, panel);
    ScorePanel(packed.key(panel), padded(packed.key_dim), part, q, block.count, scores);
    if (!part.whole) HidePairs(visibility, block, panel, part, document, -HUGE_VALF, scores);
    ListKeys(panel, part, block.count, scores, bounds, lists);
    panel_done();
  }
}

/// The entries of the lists in one panel of keys: [first, last) of each lane.
struct PanelEntries {
  int64_t panel;
  int64_t count;
  int64_t first[kQueryBlock];
  int64_t last[kQueryBlock];
};

/// Calls work(entries) for every panel with an entry in some list, the newest first, so that the rows of a panel are in
/// the caches for all queries.
template <class Work>
HWY_INLINE void ForEachPanel(const KeyLists& lists, int64_t queries, int64_t end_key, const Work& work) {
  PanelEntries entries;
  std::fill_n(entries.last, kQueryBlock, 0);
  for (int64_t panel = whole_panels(end_key) - kPanelKeys; panel >= 0; panel -= kPanelKeys) {
    entries.panel = panel;
    entries.count = 0;
    for (int64_t lane = 0; lane < queries; ++lane) {
      const int32_t* position = lists.position + lane * lists.stride;
      const int64_t first = entries.last[lane], count = lists.count[lane];
      int64_t last = first;
      while (last < count && position[last] >= panel) ++last;
      entries.first[lane] = first;
      entries.last[lane] = last;
      entries.count += last - first;
    }
    if (entries.count > 0) work(entries);
  }
}

/// sum += weight[i] * rows[position[i]], kVectors vectors of a row.
template <int kVectors>
HWY_INLINE void AddRowsPiece(const float* weight, const int32_t* position, int64_t count, const float* rows,
                             int64_t width, float* sum) {
  const LaneTag<float> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<float>());
  SizedVec<LaneTag<float>> sums[kVectors];
  for (int n = 0; n < kVectors; ++n) sums[n] = hn::LoadU(d, sum + n * kWidth);
  for (int64_t i = 0; i < count; ++i) {
    const float* row = rows + position[i] * width;
    const auto factor = hn::Set(d, weight[i]);
    for (int n = 0; n < kVectors; ++n) sums[n] = hn::MulAdd(factor, hn::LoadU(d, row + n * kWidth), sums[n]);
  }
  for (int n = 0; n < kVectors; ++n) hn::StoreU(sums[n], d, sum + n * kWidth);
}

/// sum += weight[i] * rows[position[i]] over rows of `width`.
HWY_INLINE void AddRows(const float* weight, const int32_t* position, int64_t count, const float* rows, int64_t width,
                        float* sum) {
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<float>());
  constexpr int kMost = 4;
  int64_t column = 0;
  for (; column + kMost * kWidth <= width; column += kMost * kWidth) {
    AddRowsPiece<kMost>(weight, position, count, rows + column, width, sum + column);
  }
  for (; column < width; column += kWidth) {
    AddRowsPiece<1>(weight, position, count, rows + column, width, sum + column);
  }
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set
