// Exact skipping: the older keys that a block of queries accepts are found through an index, where there is one. A pass
// calls AcceptIndexedKeys. Included once per instruction set.

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

/// Similarities of one query with the listed tiles; calls consume(tile number, vectors of similarities).
template <typename Real, typename Consume>
HWY_INLINE void ForTiles(int64_t K, const Real* HWY_RESTRICT q, const Real* tiles, const int32_t* list, int64_t count,
                         const Consume& consume) {
  constexpr int64_t kVectors = kTileKeys / hn::MaxLanes(LaneTag<Real>());
  constexpr int64_t kGroup = 4 / kVectors > 0 ? 4 / kVectors : 1;
  SizedVec<LaneTag<Real>> s[kGroup][kVectors];
  for (int64_t first = 0; first < count; first += kGroup) {
    const Real* group[kGroup];
    for (int64_t g = 0; g < kGroup; ++g) group[g] = tiles + list[std::min(first + g, count - 1)] * K * kTileKeys;
    Similarities<kGroup, kVectors, Real>(
        K, [&](int64_t) HWY_ATTR { return q; },
        [&](int64_t g, int64_t x) HWY_ATTR { return group[g] + x * hn::MaxLanes(LaneTag<Real>()); }, s);
    for (int64_t g = 0; g < std::min(kGroup, count - first); ++g) consume(list[first + g], s[g]);
  }
}

/// Eq. (8)-(11) for one query and one tile of the index: records the accepted keys and returns how many passed Trim.
template <bool kKeepShortfall, typename Real>
HWY_INLINE int64_t ScreenIndexTile(const ScreeningPass<Real>& pass, int64_t query, int64_t tile,
                                   const SizedVec<LaneTag<Real>> (&s)[kTileKeys / hn::MaxLanes(LaneTag<Real>())]) {
  const LaneTag<Real> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  const ScreeningHead<Real>& head = pass.head;
  if (AllSurelyRejected<kTileKeys / kWidth>(head, [&](int64_t x) HWY_ATTR { return hn::Vec<LaneTag<Real>>(s[x]); })) {
    return 0;
  }
  HWY_ALIGN Real shortfall[kTileKeys], trim[kTileKeys];
  uint64_t bits = 0;
  for (int64_t x = 0; x * kWidth < kTileKeys; ++x) {
    hn::Vec<LaneTag<Real>> shortfall_x, trim_x;
    TrimLanes(head, s[x], shortfall_x, trim_x);
    hn::Store(shortfall_x, d, shortfall + x * kWidth);
    hn::Store(trim_x, d, trim + x * kWidth);
    bits |= BitsOf<Real>(hn::Not(hn::Eq(trim_x, hn::Zero(d)))) << (x * kWidth);
  }
  ScreenedSegment<Real>& screened = *pass.index->screened;
  const int64_t segment = tile * kTileKeys / kIndexSegment * kIndexSegment;
  const int64_t accepted = std::popcount(bits);
  for (; bits != 0; bits &= bits - 1) {
    const int64_t lane = std::countr_zero(bits);
    const int64_t at = pass.index->position[tile * kTileKeys + lane];
    const int64_t key = segment + at;
    const Real m = head.softmask == nullptr ? Real{1} : *SoftmaskOf(head, query - key);
    if (!(m > 0)) continue;
    if (pass.document != nullptr && pass.document[key - pass.key_origin] != pass.document[query - pass.key_origin]) {
      continue;
    }
    screened.weight[at] = trim[lane] * trim[lane] * m;
    if constexpr (kKeepShortfall) screened.shortfall[at] = shortfall[lane];
    screened.accepted[at / 64] |= uint64_t{1} << (at % 64);
    screened.touched[at / 64 / 64] |= uint64_t{1} << (at / 64 % 64);
  }
  return accepted;
}

/// Finds the keys in [segment, end) that a query accepts, from the top level down to the tiles that may hold one.
template <bool kKeepShortfall, typename Real>
HWY_INLINE void SearchSegment(const ScreeningPass<Real>& pass, const Real* HWY_RESTRICT q, int64_t query,
                              int64_t segment, int64_t end) {
  const LaneTag<Real> d;
  constexpr int64_t kWidth = hn::MaxLanes(LaneTag<Real>());
  constexpr int64_t kVectors = kTileKeys / kWidth;
  KeyIndex<Real>& index = *pass.index;
  const int64_t K = pass.head.key_dim;
  // Nodes of 4,096 keys save comparisons only if there are several.
  int level = end - segment > 2 * index_node_keys(2) ? 2 : 1;
  int32_t *nodes = index.screened->nodes[0], *below = index.screened->nodes[1];
  const int64_t tile_keys = kIndexFan * index_node_keys(level);
  int64_t count = 0, bounds = 0;
  for (int64_t key = segment; key < end; key += tile_keys) nodes[count++] = static_cast<int32_t>(key / tile_keys);
  for (; level >= 0; --level) {
    const int64_t known = (end + index_node_keys(level) - 1) / index_node_keys(level);
    int64_t found = 0;
    ForTiles(K, q, index.centres[level], nodes, count,
             [&](int64_t tile, const SizedVec<LaneTag<Real>>(&x)[kVectors]) HWY_ATTR {
               const int64_t node = tile * kIndexFan;
               uint64_t bits = 0;
               for (int64_t v = 0; v < kVectors; ++v) {
                 const auto limit = hn::LoadU(d, index.limits[level] + node + v * kWidth);
                 bits |= BitsOf<Real>(hn::Not(hn::Le(x[v], limit))) << (v * kWidth);  // a NaN is searched
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
  ForTiles(K, q, index.tiles, nodes, count, [&](int64_t tile, const SizedVec<LaneTag<Real>>(&s)[kVectors]) HWY_ATTR {
    accepted += ScreenIndexTile<kKeepShortfall>(pass, query, tile, s);
  });
  constexpr double kVisitCost = 1.3, kAcceptedCost = 0.7;  // in tiles of a pass without the index, as measured
  const int64_t whole_tiles = (end - segment) / kTileKeys;
  index.replaced += static_cast<double>(whole_tiles);
  index.cost += kVisitCost * static_cast<double>(bounds + count) + kAcceptedCost * static_cast<double>(accepted);
  if (pass.counts != nullptr) {
    pass.counts->bounds += static_cast<double>(bounds * kIndexFan);
    pass.counts->similarities += static_cast<double>(count * kTileKeys);
  }
}

/// Pairs that a block sees, and those of them that it computes panel by panel.
template <typename Real>
HWY_INLINE void CountPairs(const ScreeningPass<Real>& pass, int64_t first, int64_t count, int64_t indexed) {
  if (pass.counts == nullptr) return;
  const int64_t first_key = FirstVisibleTile(pass, first), last_key = first + count;
  pass.counts->visible += static_cast<double>(count * (last_key - first_key));
  pass.counts->similarities += static_cast<double>(count * (last_key - std::max(indexed, first_key)));
}

/// Calls accept(i, accept mask, weights, shortfalls, panel) for every panel of 64 keys of which query first + i accepts
/// some, query by query and panels in order, among the keys [0, n) that the index covers. Their values are in the ring
/// by then. Returns n, 0 without an index: the caller screens the keys from n on. The masks and weights have the bits
/// of ScreenPanel.
template <bool kKeepShortfall, typename Real, typename Accept>
HWY_INLINE int64_t AcceptIndexedKeys(const ScreeningPass<Real>& pass, const Real* HWY_RESTRICT q, int64_t first,
                                     int64_t count, const Slots& slots, const Accept& accept) {
  const int64_t indexed = pass.index == nullptr ? 0 : advance_index(pass, first);
  for (int64_t segment = 0; segment < indexed; segment += kIndexSegment) {
    ScreenedSegment<Real>& found = *pass.index->screened;
    for (int64_t i = 0; i < count; ++i) {
      SearchSegment<kKeepShortfall>(pass, q + i * padded(pass.head.key_dim), first + i, segment,
                                    std::min(segment + kIndexSegment, indexed));
      for (int64_t group = 0; group < kIndexSegment / 64 / 64; ++group) {
        for (; found.touched[group] != 0; found.touched[group] &= found.touched[group] - 1) {
          const int64_t word = group * 64 + std::countr_zero(found.touched[group]);
          const int64_t panel = segment + word * kPanelKeys;
          StoreWantedValues(pass, found.accepted[word], panel, slots);
          accept(i, found.accepted[word], found.weight + word * kPanelKeys, found.shortfall + word * kPanelKeys, panel);
          found.accepted[word] = 0;
        }
      }
    }
  }
  if (indexed > 0) decide_skipping(*pass.index, first + count);
  return indexed;
}

}  // namespace tamis::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // once per instruction set
