#pragma once

#include <algorithm>
#include <cstdint>

#include "tamis/kernels/attention.h"

// Shared by the kernels of attentions that select their keys by the threshold of alpha-entmax (entmax attention,
// Sieve): one head on raw pointers, no torch, no allocation, no threads.

namespace tamis::kernels {

/// The selection of a query: the keys with (alpha - 1) z - largest > threshold. Both passes compare the same bits.
struct SelectionStatistics {
  float largest;    // max_j (alpha - 1) z_j; 0 if the query sees no key
  float threshold;  // tau - largest, in [-1, 0); alpha 1: log sum_j exp(z_j - largest), and every key is selected
};

/// A list of keys for each query of a block holds at most `keys` of them.
constexpr int64_t selection_list(int64_t keys) {
  return whole_panels(keys) + kLanes;  // and a vector of padding; lists begin in different cache sets
}

struct SelectionForward {
  PackedKeys packed;
  Visibility visibility;
  QueryBlock block;
  Rows q, out;               // row 0 is position query_origin
  int64_t query_origin = 0;  // T_k - T_q
  int64_t keys = 0;          // T_k
  double alpha = 1.5;
  double scale = 1;                           // z = scale q . k
  SelectionStatistics* statistics = nullptr;  // [T_q]
  float* scratch = nullptr;                   // selection_forward_scratch(...) numbers
};

/// Most of it is for lists, of which only the entries are touched.
constexpr int64_t selection_forward_scratch(int64_t keys, int64_t key_dim, int64_t value_dim,
                                            const QueryBlock& block = {0, kQueryBlock}) {
  return query_scratch(key_dim) + kPanelKeys * kQueryBlock + kQueryBlock * padded(value_dim) +
         2 * block.count * selection_list(keys);
}

/// Gradients from the queries [first, last) of a head. dq is written; dk and dv, rows as packed, are added to.
struct SelectionBackward {
  PackedKeys packed;
  Visibility visibility;
  int64_t first = 0, last = 0;
  Rows q, grad, dq;
  int64_t query_origin = 0;
  int64_t keys = 0;
  double alpha = 1.5;
  double scale = 1;
  const SelectionStatistics* statistics = nullptr;
  float* dk = nullptr;
  float* dv = nullptr;
  float* scratch = nullptr;  // selection_backward_scratch(...) numbers
};

constexpr int64_t selection_backward_scratch(int64_t keys, int64_t key_dim, int64_t value_dim) {
  return query_scratch(key_dim) + query_scratch(value_dim) + 2 * kPanelKeys * kQueryBlock +
         kQueryBlock * padded(key_dim) + 4 * kQueryBlock * selection_list(keys);
}

}  // namespace tamis::kernels
