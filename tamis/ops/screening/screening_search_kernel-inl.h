// Visiting the accepted keys of a block of queries, through the index of old keys where there is one. Included once per
// instruction set.

#include "tamis/ops/screening/screening_kernel.h"

#if defined(TAMIS_OPS_SCREENING_SEARCH_KERNEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TAMIS_OPS_SCREENING_SEARCH_KERNEL_INL_H_
#undef TAMIS_OPS_SCREENING_SEARCH_KERNEL_INL_H_
#else
#define TAMIS_OPS_SCREENING_SEARCH_KERNEL_INL_H_
#endif

#include "tamis/ops/screening/screening_kernel-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tamis::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

/// Similarities of one query with listed tiles; consume(tile number, vectors of similarities).
template <typename Real, typename Consume>
HWY_INLINE void ForTiles(int64_t K, const Real* HWY_RESTRICT q, const Real* tiles, const int32_t* list, int64_t count,
                         const Consume& consume) {
  constexpr int64_t kVectors = kTileKeys / hn::MaxLanes(LaneTag<Real>());
  constexpr int64_t kGroup = 4 / kVectors > 0 ? 4 / kVectors : 1;
  hn::Vec<LaneTag<Real>> s[kGroup][kVectors];
  for (int64_t first = 0; first < count; first += kGroup) {
    const Real* group[kGroup];
    for (int64_t g = 0; g < kGroup; ++g) group[g] = tiles + list[std::min(first + g, count - 1)] * K * kTileKeys;
    Similarities<kGroup, kVectors, Real>(
        K, [&](int64_t) HWY_ATTR { return q; }, [&](int64_t g) HWY_ATTR { return group[g]; }, s);
    for (int64_t g = 0; g < std::min(kGroup, count - first); ++g) consume(list[first + g], s[g]);
  }
}

/// One query against one tile of the index: notes the keys that count.
template <bool kKeepShortfall, typename Real>
HWY_INLINE int64_t ScreenIndexTile(const ScreeningWalk<Real>& walk, int64_t query, int64_t tile,
                                   const hn::Vec<LaneTag<Real>> (&s)[kTileKeys / hn::MaxLanes(LaneTag<Real>())]) {
  const LaneTag<Real> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  const ScreeningHead<Real>& head = walk.head;
  if (!AnyMayCount(head, s)) return 0;
  HWY_ALIGN Real shortfall[kTileKeys], trim[kTileKeys];
  uint64_t bits = 0;
  for (int64_t x = 0; x * kWidth < kTileKeys; ++x) {
    hn::Vec<LaneTag<Real>> shortfall_x, trim_x;
    TrimLanes(head, s[x], shortfall_x, trim_x);
    hn::Store(shortfall_x, d, shortfall + x * kWidth);
    hn::Store(trim_x, d, trim + x * kWidth);
    bits |= BitsOf<Real>(hn::Not(hn::Eq(trim_x, hn::Zero(d)))) << (x * kWidth);
  }
  IndexVerdicts<Real>& verdicts = *walk.index->verdicts;
  const int64_t window = tile * kTileKeys / kIndexWindow * kIndexWindow;
  const int64_t accepted = std::popcount(bits);
  for (; bits != 0; bits &= bits - 1) {
    const int64_t lane = std::countr_zero(bits);
    const int64_t at = walk.index->position[tile * kTileKeys + lane];
    const int64_t key = window + at;
    const Real m = head.softmask == nullptr ? Real{1} : *SoftmaskOf(head, query - key);
    if (!(m > 0)) continue;
    if (walk.document != nullptr && walk.document[key - walk.key_origin] != walk.document[query - walk.key_origin]) {
      continue;
    }
    verdicts.weight[at] = trim[lane] * trim[lane] * m;
    if constexpr (kKeepShortfall) verdicts.shortfall[at] = shortfall[lane];
    verdicts.accepted[at / 64] |= uint64_t{1} << (at % 64);
    verdicts.touched[at / 64 / 64] |= uint64_t{1} << (at / 64 % 64);
  }
  return accepted;
}

/// Finds the keys [window, end) that a query accepts: from the nodes at the top to those below that may hold one.
template <bool kKeepShortfall, typename Real>
HWY_INLINE void SearchWindow(const ScreeningWalk<Real>& walk, const Real* HWY_RESTRICT q, int64_t query, int64_t window,
                             int64_t end) {
  const LaneTag<Real> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  constexpr int64_t kVectors = kTileKeys / kWidth;
  KeyIndex<Real>& index = *walk.index;
  const int64_t K = walk.head.key_dim;
  // Nodes of 4,096 keys are worth their comparison where there are several.
  int level = end - window > 2 * index_node_keys(2) ? 2 : 1;
  int32_t *nodes = index.verdicts->nodes[0], *below = index.verdicts->nodes[1];
  const int64_t tile_keys = kIndexFan * index_node_keys(level);
  int64_t count = 0, bounds = 0;
  for (int64_t key = window; key < end; key += tile_keys) nodes[count++] = static_cast<int32_t>(key / tile_keys);
  for (; level >= 0; --level) {
    const int64_t known = (end + index_node_keys(level) - 1) / index_node_keys(level);
    int64_t found = 0;
    ForTiles(K, q, index.centres[level], nodes, count,
             [&](int64_t tile, const hn::Vec<LaneTag<Real>>(&x)[kVectors]) HWY_ATTR {
               const int64_t node = tile * kIndexFan;
               uint64_t bits = 0;
               for (int64_t v = 0; v < kVectors; ++v) {
                 const auto limit = hn::LoadU(d, index.limits[level] + node + v * kWidth);
                 bits |= BitsOf<Real>(hn::Not(hn::Le(x[v], limit))) << (v * kWidth);  // a NaN is looked at
               }
               if (known - node < kIndexFan) bits &= (uint64_t{1} << (known - node)) - 1;
               for (; bits != 0; bits &= bits - 1) {
                 below[found++] = static_cast<int32_t>(node + std::countr_zero(bits));
               }
             });
    bounds += count;
    std::swap(nodes, below);
    count = found;
  }
  int64_t accepted = 0;
  ForTiles(K, q, index.tiles, nodes, count, [&](int64_t tile, const hn::Vec<LaneTag<Real>>(&s)[kVectors]) HWY_ATTR {
    accepted += ScreenIndexTile<kKeepShortfall>(walk, query, tile, s);
  });
  constexpr double kVisitCost = 1.3, kAcceptedCost = 0.7;  // in tiles of the dense walk, as measured
  const int64_t tiles_of_dense_walk = (end - window) / kTileKeys;
  index.asked += static_cast<double>(tiles_of_dense_walk);
  index.spent += kVisitCost * static_cast<double>(bounds + count) + kAcceptedCost * static_cast<double>(accepted);
  if (walk.skipped != nullptr) {
    walk.skipped->bounds += static_cast<double>(bounds * kIndexFan);
    walk.skipped->similarities += static_cast<double>(count * kTileKeys);
  }
}

/// Finds what every query of a block accepts, panels of 64 keys in order. Keys [0, n) come from the index, a query at a
/// time: of_query(i, accepted, weight, shortfall, panel). The others come a panel at a time: of_panel(panel), its
/// verdicts being those of the block. Both find the same, bit for bit. Values are in the ring by then. A key that no
/// query accepts has no value there. Returns n.
template <bool kKeepShortfall, typename Real, typename OfQuery, typename OfPanel>
HWY_INLINE int64_t ForAcceptedKeys(const ScreeningWalk<Real>& walk, const Real* HWY_RESTRICT q, int64_t first,
                                   int64_t count, const Slots& slots, Verdicts<Real>& verdicts, const OfQuery& of_query,
                                   const OfPanel& of_panel) {
  const int64_t indexed = walk.index == nullptr ? 0 : advance_index(walk, first);
  for (int64_t window = 0; window < indexed; window += kIndexWindow) {
    IndexVerdicts<Real>& found = *walk.index->verdicts;
    for (int64_t i = 0; i < count; ++i) {
      SearchWindow<kKeepShortfall>(walk, q + i * padded(walk.head.key_dim), first + i, window,
                                   std::min(window + kIndexWindow, indexed));
      for (int64_t group = 0; group < kIndexWindow / 64 / 64; ++group) {
        for (; found.touched[group] != 0; found.touched[group] &= found.touched[group] - 1) {
          const int64_t word = group * 64 + std::countr_zero(found.touched[group]);
          const int64_t panel = window + word * kPanelKeys;
          StoreWantedValues(walk, found.accepted[word], panel, slots);
          of_query(i, found.accepted[word], found.weight + word * kPanelKeys, found.shortfall + word * kPanelKeys,
                   panel);
          found.accepted[word] = 0;
        }
      }
    }
  }
  if (indexed > 0) judge_index(*walk.index, first + count);

  const int64_t first_key = std::max(indexed, FirstVisibleTile(walk, first));
  for (int64_t panel = first_key; panel < first + count; panel += kPanelKeys) {
    ScreenPanel<kKeepShortfall>(walk, q, first, count, panel, slots, verdicts);
    of_panel(panel);
  }
  if (walk.skipped != nullptr) {
    walk.skipped->visible += static_cast<double>(count * (first + count - FirstVisibleTile(walk, first)));
    walk.skipped->similarities += static_cast<double>(count * (first + count - first_key));
  }
  return indexed;
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set
