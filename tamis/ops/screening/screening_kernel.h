#pragma once

#include <bit>
#include <cstdint>

#include "tamis/kernels/rows.h"
#include "tamis/ops/screening/screening_index_kernel.h"

// Screening on raw pointers: no torch, no allocation, no threads. One call is a pass over queries of one head in order;
// the newest keys are kept in a small ring that stays in the cache. Highway compiles the bodies for every instruction
// set and picks one at run time.
//
// Letters as in screening.h: i query, j key (absolute positions), K key width, V value width, w window, r acceptance.

namespace tamis::kernels {

inline constexpr int64_t kTileKeys = kLanes;  // keys of a tile: the lanes of a similarity vector
inline constexpr int64_t kBlockQueries = 32;  // queries of a block, at most
inline constexpr int64_t kMaskPadding = 64;   // zeros on either side of a softmask table

/// What a pass reads of a head.
template <typename Real>
struct ScreeningHead {
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t span = 0;               // a query sees distances 0 .. span - 1: min(ceil(w), number of keys)
  double mipe_step = 0;           // angle per token, pi phi(w) / w
  const double* turns = nullptr;  // cos of 0, 1, ..., 15 such angles, then their sin; null where there is no angle
  Real inverse_r = 0;             // 1/r
  Real one_minus_r = 0;           // 1 - r
  Real surely_rejected = 0;       // the largest similarity whose Trim is 0 whatever the rounding
  bool tanh_norm = true;
  /// m at distance d is softmask[kMaskPadding + span - 1 - d], with zeros on both sides; null: m = 1 for every
  /// key up to the query, as in a window that is infinite or much longer than the sequence.
  const Real* softmask = nullptr;
  const Real* softmask_slope = nullptr;  // dm / ds_w likewise, null: 0; for the backward pass
};

/// The newest keys of a head, of unit length and rotated, and their values, of unit length. Position j is in slot
/// j mod capacity. A value is loaded when a query first accepts its key, or with the key if store_all_values is set.
template <typename Real>
struct KeyRing {
  int64_t capacity = 0;      // keys, a multiple of kTileKeys, at least span - 1 + kBlockQueries + 2 kTileKeys
  Real* tiles = nullptr;     // [capacity / 16][K][16]: transposed, one key per lane
  Real* values = nullptr;    // [capacity][padded(V)]
  uint8_t* ready = nullptr;  // [capacity]: the value is loaded
  // For the backward pass only.
  Real* rows = nullptr;        // [capacity][padded(K)]: keys row by row
  double* key_norm = nullptr;  // [capacity]: the norms that keys and values were divided by
  double* value_norm = nullptr;
};

/// The smallest capacity of a ring for blocks of `block` queries.
constexpr int64_t ring_capacity(int64_t span, int64_t block) {
  return (span - 1 + block + 2 * kTileKeys - 1) / kTileKeys * kTileKeys;
}

/// The inputs of a pass over queries [first, last). Row 0 of q, gate and out is position query_origin; row 0 of k and v
/// is position key_origin.
template <typename Real>
struct ScreeningPass {
  ScreeningHead<Real> head;
  KeyRing<Real> ring;
  Rows q, k, v, gate;  // gate.data null: none
  Rows out;            // forward: the result; backward: its gradient
  int64_t query_origin = 0;
  int64_t key_origin = 0;
  int64_t first = 0;
  int64_t last = 0;
  int64_t block = kBlockQueries;  // queries of a block, at most kBlockQueries
  int64_t packed = 0;             // keys before this position are in the ring already
  bool store_all_values = false;
  const Real* document = nullptr;  // [keys] document number of position j - key_origin; null: one document
  Real* scratch = nullptr;         // forward_scratch or backward_scratch numbers
  /// Index of older keys for exact skipping; null: none. Only where the ring keeps every key of the sequence.
  KeyIndex<Real>* index = nullptr;
  PassCounts* counts = nullptr;  // null: nothing is counted
};

/// Scratch numbers of a forward pass.
constexpr int64_t forward_scratch(int64_t key_dim, int64_t value_dim) {
  return kBlockQueries * (padded(key_dim) + padded(value_dim)) + padded(value_dim);
}

/// Computes the results of the queries and advances the ring to position `last`.
template <typename Real>
void screening_forward(const ScreeningPass<Real>& pass);

/// What the queries of a block accept of a panel.
struct PanelTally {
  uint64_t wanted = 0;   // bit l: some query accepts key l
  int32_t accepted = 0;  // pairs
  bool dense = false;    // its pairs are processed together

  void add(uint64_t keys) {
    wanted |= keys;
    accepted += std::popcount(keys);
  }
};

/// Gradients of a pass over queries [first, last). pass.out is the gradient of the result; `result` may be the same
/// memory. The gradients of a key are summed in `sums` while it is in the ring and are written when no later query can
/// see it.
///
/// The queries of a head may be cut into chunks of at least span - 1 queries with a pass each. The gradients of keys
/// before the first query, which belong to the chunk before, go to `halo`; those of the last span - 1 keys, which the
/// next chunk sees too, go to `tail`. finish_keys adds the two. A row of sums, halo and tail has padded(K) + padded(V)
/// numbers: gradients of the rotated unit key and of the unit value.
template <typename Real>
struct ScreeningBackward {
  ScreeningPass<Real> pass;
  Rows dq, dk, dv, dgate;
  Rows result;                         // of the forward pass, computed here too; data null: not written
  Real* halo = nullptr;                // [span - 1][...], row 0 is key pass.first - span + 1; null: first chunk
  Real* tail = nullptr;                // [span - 1][...], row 0 is key pass.last - span + 1; null: last chunk
  Real* sums = nullptr;                // [capacity][...], zero before and after the chunk
  Real* accepted_shortfall = nullptr;  // [block][accepted_capacity(span)]
  int32_t* accepted_key = nullptr;     // [block][accepted_capacity(span)]
  PanelTally* panels = nullptr;        // [panel_capacity(span)] of a block
  // Results, summed over pairs: gradients of s_w through the softmask, of mipe_step and of s_r.
  double d_softmask = 0;
  double d_mipe_step = 0;
  double d_accept = 0;
};

constexpr int64_t accepted_capacity(int64_t span) {
  return padded(span) + kTileKeys;
}

/// Panels that a block sees, at most.
constexpr int64_t panel_capacity(int64_t span) {
  return (span + kBlockQueries + kTileKeys) / kPanelKeys + 2;
}

constexpr int64_t backward_scratch(int64_t key_dim, int64_t value_dim) {
  return 3 * kBlockQueries * (padded(key_dim) + padded(value_dim)) + padded(key_dim) + 3 * padded(value_dim);
}

template <typename Real>
void screening_backward(ScreeningBackward<Real>& backward);

/// Writes dk and dv of the span - 1 keys before position `end` from tail + halo. Does not use the ring or sums.
template <typename Real>
void finish_keys(const ScreeningBackward<Real>& backward, int64_t end, const Real* tail, const Real* halo);

}  // namespace tamis::kernels
