#pragma once

#include <cstdint>

// Exact skipping: an index of a head's older keys, grouped so that one comparison rejects many. It is used where a
// query can see the whole past, so that no key ever leaves. The order of the keys in the index never changes a result:
// a node is skipped only if the similarity of each of its keys, as the pass would compute it, is certainly rejected.
// README.md derives the bound.
//
// A pass uses it through AcceptIndexedKeys (screening_search_kernel-inl.h) alone.

namespace tamis::kernels {

template <typename Real>
struct ScreeningPass;

inline constexpr int64_t kIndexFan = 16;          // children of a node: the lanes of a vector
inline constexpr int kIndexLevels = 3;            // nodes of 16, 256 and 4,096 keys
inline constexpr int64_t kIndexSegment = 65'536;  // keys that are searched together
inline constexpr int64_t kIndexBuckets[] = {65'536, 8192,
                                            1024};  // keys that are sorted together, aligned to their size
inline constexpr int64_t kSmallestBucket = 1024;

/// Keys below a node of `level`.
constexpr int64_t index_node_keys(int level) {
  return level == 0 ? 16 : kIndexFan * index_node_keys(level - 1);
}

/// The accepted keys of one query in a segment: bit l of accepted[p] is the accept mask of key segment + 64 p + l, bit
/// l of touched[p] says that accepted[64 p + l] is not 0. shortfall and weight are defined for accepted keys only.
template <typename Real>
struct ScreenedSegment {
  uint64_t touched[kIndexSegment / 64 / 64] = {};
  uint64_t accepted[kIndexSegment / 64] = {};
  Real shortfall[kIndexSegment];
  Real weight[kIndexSegment];
  int32_t nodes[2][kIndexSegment / 16];  // tiles that a search visits on this level and on the next
};

/// When the index is used: where it saves time, never, or wherever it can be. The last two are for tests and
/// measurements.
enum class Skipping { kAdaptive, kNever, kAlways };

/// Work of a pass, in pairs of a query and a key.
struct PassCounts {
  double visible = 0;       // pairs inside the window
  double similarities = 0;  // of them computed, at most: a block screens tiles that some of its queries cannot see
  double bounds = 0;        // similarities of a query with the centre of a node
  double dense = 0;         // accepted pairs that the backward pass processes panel by panel
};

/// The index of one head. Slot x holds key 65,536 (x / 65,536) + position[x]; the slots of a bucket hold the keys of
/// that bucket in another order. Every 16 slots form a tile as in KeyRing.
template <typename Real>
struct KeyIndex {
  int64_t capacity = 0;          // keys
  Real* tiles = nullptr;         // [capacity / 16][K][16]
  uint16_t* position = nullptr;  // [capacity]
  // Level l has one node per index_node_keys(l) slots: a direction, and the largest similarity with it at which a query
  // certainly rejects every key below the node.
  Real* centres[kIndexLevels] = {};  // [nodes / 16][K][16]
  Real* limits[kIndexLevels] = {};   // [nodes]
  ScreenedSegment<Real>* screened = nullptr;
  uint64_t* order = nullptr;  // [kIndexSegment] scratch of the construction
  Real* rows = nullptr;       // [kIndexSegment][padded(K)] likewise

  Skipping skipping = Skipping::kAdaptive;
  int64_t indexed = 0;  // keys [0, indexed) are in the index
  int64_t resume = 0;   // the index is not used before this query, because it did not save time
  bool trial = true;    // only a small index, until it has saved time
  double replaced = 0;  // tiles that a pass without the index would have screened, since the last decision
  double cost = 0;      // of the searches instead, in such tiles
};

/// Numbers of each level's arrays for an index of `capacity` keys: limits; centres have K times as many.
int64_t index_nodes(int64_t capacity, int level);

/// Brings the index up to date for queries from `first` on. Returns how many keys it covers: a multiple of
/// kSmallestBucket, at most `first`, or 0 if it does not save time.
template <typename Real>
int64_t advance_index(const ScreeningPass<Real>& pass, int64_t first);

/// Decides after a block of queries whether the index is used from `next_query` on.
template <typename Real>
void decide_skipping(KeyIndex<Real>& index, int64_t next_query);

}  // namespace tamis::kernels
