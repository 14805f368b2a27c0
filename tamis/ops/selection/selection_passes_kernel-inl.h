// Attention over selected keys, forward and backward but for the weights, which a mechanism gives. Included once per
// instruction set.

#if defined(TAMIS_OPS_SELECTION_SELECTION_PASSES_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_OPS_SELECTION_SELECTION_PASSES_KERNEL_INL_H_
#undef TAMIS_OPS_SELECTION_SELECTION_PASSES_KERNEL_INL_H_
#else
#define TAMIS_OPS_SELECTION_SELECTION_PASSES_KERNEL_INL_H_
#endif

#include "hwy/highway.h"
#include "tamis/kernels/attention-inl.h"
#include "tamis/ops/selection/selection_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Entries of a panel from which on products of whole matrices cost less than single pairs.
inline constexpr int64_t kDensePanel = kPanelKeys * kQueryBlock / 4;

/// sum += factor * row over the entries of a lane in a panel.
HWY_INLINE void AddEntries(const KeyLists& lists, const float* factors, const PanelEntries& entries, int64_t lane,
                           const float* rows, int64_t width, float* sum) {
  const int64_t first = entries.first[lane], count = entries.last[lane] - first, at = lane * lists.stride + first;
  if (count > 0) AddRows(factors + at, lists.position + at, count, rows, width, sum);
}

/// Computes the results of a block. Mechanism::Weights(statistics, score, count, weight) computes the weights of a list
/// of selected scores, possibly in place, and returns how many come before the first that underflows to 0.
template <class Mechanism>
HWY_INLINE void SelectionForwardPass(const Mechanism& mechanism, const SelectionForward& work) {
  const QueryBlock& block = work.block;
  const PackedKeys& packed = work.packed;
  const int64_t value_width = padded(packed.value_dim), row = block.first - work.query_origin;
  const BlockRows q(work.scratch, packed.key_dim);
  float* scores = work.scratch + query_scratch(packed.key_dim);
  float* out = scores + kPanelKeys * kQueryBlock;
  float* lists_memory = out + kQueryBlock * value_width;
  const int64_t stride = selection_list(work.keys);
  KeyLists lists{.position = reinterpret_cast<int32_t*>(lists_memory + block.count * stride),
                 .score = lists_memory,
                 .weight = lists_memory,
                 .gradient = nullptr,
                 .stride = stride};
  const Entmax entmax(work.alpha);
  float factor[kQueryBlock];
  std::fill_n(factor, kQueryBlock, static_cast<float>(entmax.score_scale * work.scale));
  LoadBlock(work.q, row, block.count, factor, q);

  Candidates candidates(entmax, lists, block.count);
  ListPanels(packed, work.visibility, block, q, scores, candidates.bounds, lists,
             [&]() HWY_ATTR { candidates.Tighten(block.count); });
  for (int64_t lane = 0; lane < block.count; ++lane) {
    const SelectionStatistics statistics = candidates.Finish(lane);
    work.statistics[row + lane] = statistics;
    lists.count[lane] = mechanism.Weights(entmax, statistics, lists.score + lane * stride, lists.count[lane],
                                          lists.weight + lane * stride);
  }
  std::fill(out, out + block.count * value_width, 0.0f);
  ForEachPanel(lists, block.count, block.end_key(work.visibility), [&](const PanelEntries& entries) HWY_ATTR {
    for (int64_t lane = 0; lane < block.count; ++lane) {
      AddEntries(lists, lists.weight, entries, lane, packed.values, value_width, out + lane * value_width);
    }
  });
  for (int64_t lane = 0; lane < block.count; ++lane) {
    StoreRow(out + lane * value_width, packed.value_dim, work.out, row + lane);
  }
}

/// gradient of each weight: the product of the value and the gradient of the result.
HWY_INLINE void WeightGradients(const KeyLists& lists, const PanelEntries& entries, const QueryBlock& block,
                                const Visibility& visibility, const PackedKeys& packed, const BlockRows& grad,
                                float* products) {
  const int64_t width = padded(packed.value_dim), queries = block.count;
  const bool dense = entries.count >= kDensePanel;
  const PanelPart part =
      VisiblePart(visibility, block, block.first_key(visibility), block.end_key(visibility), entries.panel);
  if (dense) PanelTimesBlock(packed.value(entries.panel), width, part, grad, padded(queries), products);
  for (int64_t lane = 0; lane < queries; ++lane) {
    const int64_t end = lane * lists.stride + entries.last[lane];
    for (int64_t i = lane * lists.stride + entries.first[lane]; i < end; ++i) {
      const int64_t key = lists.position[i];
      lists.gradient[i] =
          dense ? products[(key - entries.panel) * kQueryBlock + lane] : Dot(packed.value(key), grad.row(lane), width);
    }
  }
}

/// dk and dv of a panel with many entries: products of whole matrices, zero for the other pairs.
HWY_INLINE void AddDenseKeyGradients(const KeyLists& lists, const PanelEntries& entries, int64_t queries,
                                     int64_t end_key, const BlockRows& q, const BlockRows& grad, float* weights,
                                     float* dk, float* dv) {
  const int64_t keys = std::min(kPanelKeys, end_key - entries.panel);
  const int64_t key_width = padded(q.dim), value_width = padded(grad.dim);
  float* gradients = weights + kPanelKeys * kQueryBlock;
  std::fill_n(weights, 2 * kPanelKeys * kQueryBlock, 0.0f);
  for (int64_t lane = 0; lane < queries; ++lane) {
    const int64_t end = lane * lists.stride + entries.last[lane];
    for (int64_t i = lane * lists.stride + entries.first[lane]; i < end; ++i) {
      const int64_t at = (lists.position[i] - entries.panel) * kQueryBlock + lane;
      weights[at] = lists.weight[i];
      gradients[at] = lists.gradient[i];
    }
  }
  Multiply<Sum::kAdd>(keys, value_width, queries, {weights, kQueryBlock, 1}, {grad.rows, value_width},
                      {dv + entries.panel * value_width, value_width});
  Multiply<Sum::kAdd>(keys, key_width, queries, {gradients, kQueryBlock, 1}, {q.rows, key_width},
                      {dk + entries.panel * key_width, key_width});
}

HWY_INLINE void AddKeyGradients(const KeyLists& lists, const PanelEntries& entries, int64_t queries, const BlockRows& q,
                                const BlockRows& grad, float* dk, float* dv) {
  const int64_t key_width = padded(q.dim), value_width = padded(grad.dim);
  for (int64_t lane = 0; lane < queries; ++lane) {
    const int64_t end = lane * lists.stride + entries.last[lane];
    for (int64_t i = lane * lists.stride + entries.first[lane]; i < end; ++i) {
      const int64_t key = lists.position[i];
      AddScaled(lists.gradient[i], q.row(lane), dk + key * key_width, key_width);
      AddScaled(lists.weight[i], grad.row(lane), dv + key * value_width, value_width);
    }
  }
}

/// Gradients from the queries of a block. Mechanism::Gradients(statistics, score, weight, count, gradient) replaces the
/// gradients of a list's weights by those of its scores; it may overwrite `score`.
template <class Mechanism>
HWY_INLINE void SelectionBackwardOfBlock(const Mechanism& mechanism, const SelectionBackward& work,
                                         const QueryBlock& block) {
  const PackedKeys& packed = work.packed;
  const int64_t key_width = padded(packed.key_dim);
  const int64_t row = block.first - work.query_origin, stride = selection_list(work.keys);
  const BlockRows q(work.scratch, packed.key_dim);
  const BlockRows grad(work.scratch + query_scratch(packed.key_dim), packed.value_dim);
  float* panels = work.scratch + query_scratch(packed.key_dim) + query_scratch(packed.value_dim);
  float* dq = panels + 2 * kPanelKeys * kQueryBlock;
  float* lists_memory = dq + kQueryBlock * key_width;
  KeyLists lists{.position = reinterpret_cast<int32_t*>(lists_memory + 3 * kQueryBlock * stride),
                 .score = lists_memory,
                 .weight = lists_memory + kQueryBlock * stride,
                 .gradient = lists_memory + 2 * kQueryBlock * stride,
                 .stride = stride};
  const Entmax entmax(work.alpha);
  float factor[kQueryBlock];
  std::fill_n(factor, kQueryBlock, static_cast<float>(entmax.score_scale * work.scale));
  LoadBlock(work.q, row, block.count, factor, q);
  LoadBlock(work.grad, row, block.count, nullptr, grad);
  Thresholds bounds;
  for (int64_t lane = 0; lane < block.count; ++lane) {
    bounds.offset[lane] = work.statistics[row + lane].largest;
    bounds.bound[lane] = entmax.bound(work.statistics[row + lane].threshold);
  }
  ListPanels(packed, work.visibility, block, q, panels, bounds, lists, [] {});
  for (int64_t lane = 0; lane < block.count; ++lane) {
    float* score = lists.score + lane * stride;
    PadScores(score, lists.count[lane]);
    lists.count[lane] =
        mechanism.Weights(entmax, work.statistics[row + lane], score, lists.count[lane], lists.weight + lane * stride);
  }
  const int64_t end_key = block.end_key(work.visibility);
  ForEachPanel(lists, block.count, end_key, [&](const PanelEntries& entries) HWY_ATTR {
    WeightGradients(lists, entries, block, work.visibility, packed, grad, panels);
  });
  for (int64_t lane = 0; lane < block.count; ++lane) {
    const int64_t at = lane * stride;
    mechanism.Gradients(entmax, work.statistics[row + lane], lists.score + at, lists.weight + at, lists.count[lane],
                        lists.gradient + at);
  }
  std::fill(dq, dq + block.count * key_width, 0.0f);
  ForEachPanel(lists, block.count, end_key, [&](const PanelEntries& entries) HWY_ATTR {
    for (int64_t lane = 0; lane < block.count; ++lane) {
      AddEntries(lists, lists.gradient, entries, lane, packed.keys, key_width, dq + lane * key_width);
    }
    if (entries.count >= kDensePanel) {
      AddDenseKeyGradients(lists, entries, block.count, end_key, q, grad, panels, work.dk, work.dv);
    } else {
      AddKeyGradients(lists, entries, block.count, q, grad, work.dk, work.dv);
    }
  });
  for (int64_t lane = 0; lane < block.count; ++lane) {
    ScaleRow(factor[lane], dq + lane * key_width, key_width);
    StoreRow(dq + lane * key_width, packed.key_dim, work.dq, row + lane);
  }
}

template <class Mechanism>
HWY_INLINE void SelectionBackwardPass(const Mechanism& mechanism, const SelectionBackward& work) {
  for (int64_t first = work.first; first < work.last; first += kQueryBlock) {
    SelectionBackwardOfBlock(mechanism, work, {first, std::min(kQueryBlock, work.last - first)});
  }
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set
