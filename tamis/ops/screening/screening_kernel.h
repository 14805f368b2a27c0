#pragma once

#include <bit>
#include <cstdint>

#include "tamis/kernels/rows.h"
#include "tamis/ops/screening/screening_index_kernel.h"

// Screening on raw pointers: no torch, no allocation, no threads in here. One call passes the queries of one head in
// order, so that the newest keys sit in a small ring that stays in the cache. Highway compiles the bodies for every
// instruction set and picks at run time.
//
// Letters as in screening.h: i query, j key (absolute positions), K key width, V value width, w window, r acceptance.

namespace tamis::kernels {

inline constexpr int64_t kTileKeys = kLanes;  // keys of a tile: the lanes of a similarity vector
inline constexpr int64_t kPanelKeys = 64;     // keys whose screened fit one 64-bit word
inline constexpr int64_t kBlockQueries = 32;  // most queries that are answered together
inline constexpr int64_t kMaskPadding = 64;   // zeros on either side of a softmask table

/// What the pass needs to know of a head.
template <typename Real>
struct ScreeningHead {
  int64_t key_dim = 0;
  int64_t value_dim = 0;
  int64_t span = 0;               // a query sees distances 0 .. span - 1: min(ceil(w), number of keys)
  double mipe_step = 0;           // angle per token, pi phi(w) / w
  const double* turns = nullptr;  // cos of 0, 1, ..., 15 such angles, then their sin; null where there is no angle
  Real inverse_r = 0;             // 1/r
  Real one_minus_r = 0;           // 1 - r
  Real surely_rejected = 0;       // Trim of a similarity up to this is 0 however it rounds
  bool tanh_norm = true;
  /// m at distance d stands at softmask[kMaskPadding + span - 1 - d], zeros around; null: all visible keys count 1.
  const Real* softmask = nullptr;
  const Real* softmask_slope = nullptr;  // dm / ds_w, likewise; null: zero (only the backward pass reads it)
};

/// Fills the two tables of `head` (each span + 2 kMaskPadding numbers); slope may be null.
template <typename Real>
void fill_softmask(double width, int64_t span, Real* softmask, Real* slope);

/// The newest keys of a head, unit length and rotated, and their unit-length values. Position j lives in slot
/// j mod capacity. Values are brought in when a query first accepts their key, unless the pass is told to store all.
template <typename Real>
struct KeyRing {
  int64_t capacity = 0;      // keys, a multiple of kTileKeys, at least span - 1 + kBlockQueries + 2 kTileKeys
  Real* tiles = nullptr;     // [capacity / 16][K][16]: transposed, one key per lane
  Real* values = nullptr;    // [capacity][padded(V)]
  uint8_t* ready = nullptr;  // [capacity]: the value is there
  // Only the backward pass has these.
  Real* rows = nullptr;        // [capacity][padded(K)]: keys row by row
  double* key_norm = nullptr;  // [capacity]: the denominators that made keys and values unit length
  double* value_norm = nullptr;
};

/// Smallest ring that serves blocks of `block` queries.
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
  Rows out;            // forward: result; backward: its gradient
  int64_t query_origin = 0;
  int64_t key_origin = 0;
  int64_t first = 0;
  int64_t last = 0;
  int64_t block = kBlockQueries;  // queries answered together, at most kBlockQueries
  int64_t packed = 0;             // keys before this position are in the ring already
  bool store_all_values = false;
  const Real* document = nullptr;  // [keys] document number of position j - key_origin; null: one document
  Real* scratch = nullptr;         // pass_scratch(...) numbers
  /// Older keys, grouped; null: none. Only where the ring keeps every key: span at least as long as the sequence.
  KeyIndex<Real>* index = nullptr;
  PassCounts* counts = nullptr;  // null: nothing is counted
};

/// Scratch numbers of a forward pass.
constexpr int64_t forward_scratch(int64_t key_dim, int64_t value_dim) {
  return kBlockQueries * (padded(key_dim) + padded(value_dim)) + padded(value_dim);
}

/// Answers the queries and advances the ring to position `last`.
template <typename Real>
void screening_forward(const ScreeningPass<Real>& pass);

/// What a block of queries accepts of a panel of 64 keys.
struct PanelTally {
  uint64_t wanted = 0;   // bit l: some query accepts key l
  int32_t accepted = 0;  // pairs
  bool dense = false;    // its pairs are not remembered one by one

  void add(uint64_t keys) {
    wanted |= keys;
    accepted += std::popcount(keys);
  }
};

/// The gradients of a pass over queries [first, last), pass.out being the gradient of the result; `result` may be the
/// same memory. Key gradients gather in `sums` while their keys are in the ring and are written when no later query can
/// see them.
///
/// A head's queries may be split into chunks, each at least span - 1 long and a pass of its own. Keys before the
/// first query then belong to the chunk before: what they receive here goes to `halo`. Keys that the next chunk can
/// still see, the last span - 1, go to `tail`. finish_keys adds the two. A row of sums, halo and tail has padded(K) +
/// padded(V) numbers, gradients of the rotated unit key and of the unit value.
template <typename Real>
struct ScreeningBackward {
  ScreeningPass<Real> pass;
  Rows dq, dk, dv, dgate;
  Rows result;                         // of the forward pass, which this one has anyway; data null: nobody wants it
  Real* halo = nullptr;                // [span - 1][...], row 0 is key pass.first - span + 1; null: first chunk
  Real* tail = nullptr;                // [span - 1][...], row 0 is key pass.last - span + 1; null: last chunk
  Real* sums = nullptr;                // [capacity][...], zero before and after the chunk
  Real* accepted_shortfall = nullptr;  // [block][accepted_capacity(span)]
  int32_t* accepted_key = nullptr;     // [block][accepted_capacity(span)]
  PanelTally* panels = nullptr;        // [panel_capacity(span)] what a block's queries accept of 64 keys each
  // Results, summed over pairs: gradients of s_w through the softmask, of mipe_step, and of s_r.
  double d_softmask = 0;
  double d_mipe_step = 0;
  double d_accept = 0;
};

constexpr int64_t accepted_capacity(int64_t span) {
  return padded(span) + kTileKeys;
}

/// Panels that a block can see.
constexpr int64_t panel_capacity(int64_t span) {
  return (span + kBlockQueries + kTileKeys) / kPanelKeys + 2;
}

constexpr int64_t backward_scratch(int64_t key_dim, int64_t value_dim) {
  return 3 * kBlockQueries * (padded(key_dim) + padded(value_dim)) + padded(key_dim) + 3 * padded(value_dim);
}

template <typename Real>
void screening_backward(ScreeningBackward<Real>& backward);

/// Writes dk and dv of the span - 1 keys before position `end` from tail + halo; the ring and sums are not used.
template <typename Real>
void finish_keys(const ScreeningBackward<Real>& backward, int64_t end, const Real* tail, const Real* halo);

}  // namespace tamis::kernels
