#pragma once

#include <cstdint>

// A head's older keys, grouped so that one comparison rejects many. Used where a query can see the whole past, so that
// keys never leave. Which keys stand together never changes a result: a group is skipped only when the similarity of
// each of its keys, as the walk would compute it, is surely rejected. The README derives the bound.

namespace tamis::kernels {

template <typename Real>
struct ScreeningWalk;

inline constexpr int64_t kIndexFan = 16;                         // children of a node: the lanes of a vector
inline constexpr int kIndexLevels = 3;                           // nodes of 16, 256 and 4,096 keys
inline constexpr int64_t kIndexWindow = 65'536;                  // keys that are ordered together at most
inline constexpr int64_t kIndexChunks[] = {65'536, 8192, 1024};  // sizes of ordered pieces, aligned to themselves
inline constexpr int64_t kSmallestChunk = 1024;

/// Keys below a node of `level`.
constexpr int64_t index_node_keys(int level) {
  return level == 0 ? 16 : kIndexFan * index_node_keys(level - 1);
}

/// Accepted keys of one query among the keys of a window: bit l of accepted[p] says that key window + 64 p + l counts,
/// bit l of touched[p] that accepted[64 p + l] is not 0. Only the numbers of accepted keys are meaningful.
template <typename Real>
struct IndexVerdicts {
  uint64_t touched[kIndexWindow / 64 / 64] = {};
  uint64_t accepted[kIndexWindow / 64] = {};
  Real shortfall[kIndexWindow];
  Real weight[kIndexWindow];
  int32_t nodes[2][kIndexWindow / 16];  // tiles that a search visits on this level and on the next
};

/// Whether bounds are asked for: where they pay, never, or wherever they can be (both for tests and measurements).
enum class Skipping { kAdaptive, kNever, kAlways };

/// What was asked and what it spared, in pairs of a query and a key.
struct SkippedWork {
  double visible = 0;       // pairs within the window
  double similarities = 0;  // of them computed, at most: a block passes over tiles that some of its queries cannot see
  double bounds = 0;        // similarities of a query with a node's centre
  double dense = 0;         // accepted pairs that the backward pass took panel by panel
};

/// The index of one head. Slot x of the index holds key 65,536 (x / 65,536) + position[x]; slots of a chunk hold the
/// keys of that chunk in another order. Every 16 slots form a tile as in KeyRing.
template <typename Real>
struct KeyIndex {
  int64_t capacity = 0;          // keys that there is room for
  Real* tiles = nullptr;         // [capacity / 16][K][16]
  uint16_t* position = nullptr;  // [capacity]
  // Level l has one node per index_node_keys(l) slots: a direction, and the largest similarity with it at which a query
  // surely rejects every key below the node.
  Real* centres[kIndexLevels] = {};  // [nodes / 16][K][16]
  Real* limits[kIndexLevels] = {};   // [nodes]
  IndexVerdicts<Real>* verdicts = nullptr;
  uint64_t* order = nullptr;  // [kIndexWindow] scratch of the construction
  Real* rows = nullptr;       // [kIndexWindow][padded(K)] likewise

  Skipping skipping = Skipping::kAdaptive;
  int64_t indexed = 0;  // keys [0, indexed) are in the index
  int64_t resume = 0;   // no bounds before this query: they did not pay
  bool trial = true;    // a small index only, until it has shown that it pays
  double asked = 0;     // dense tiles that the bounds of this judgement stand for
  double spent = 0;     // and what they cost instead, in dense tiles
};

/// Numbers of each level's arrays for an index of `capacity` keys: [0] centres, [1] limits.
int64_t index_nodes(int64_t capacity, int level);

/// Brings the index up to date for queries from `first` on, within what it may spend. Returns how many keys it answers
/// for: a multiple of kSmallestChunk, at most `first`, 0 when bounds do not pay.
template <typename Real>
int64_t advance_index(const ScreeningWalk<Real>& walk, int64_t first);

/// Decides, after a block of queries, whether bounds go on being asked for.
template <typename Real>
void judge_index(KeyIndex<Real>& index, int64_t next_query);

}  // namespace tamis::kernels
