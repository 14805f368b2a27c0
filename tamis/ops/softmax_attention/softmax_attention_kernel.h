#pragma once

#include <cstdint>

#include "tamis/kernels/attention.h"

// Softmax attention of one head on raw pointers: no torch, no allocation, no threads. Keys are processed
// panel by panel; a query keeps its largest score, the sum of exponentials and the sum of values (online softmax).

namespace tamis::kernels {

/// From these and the scores of a query follow its weights: exp(score - largest) * inverse_sum.
struct SoftmaxStatistics {
  float largest;
  float inverse_sum;
};

struct SoftmaxForward {
  PackedKeys packed;
  Visibility visibility;
  QueryBlock block;
  Rows q, out;  // row 0 is position query_origin
  int64_t query_origin = 0;
  float scale = 1;                          // of every score
  const float* query_scale = nullptr;       // [T_q] of each query's scores, too; null: 1
  SoftmaxStatistics* statistics = nullptr;  // [T_q]
  float* scratch = nullptr;                 // softmax_forward_scratch(...) numbers
};

constexpr int64_t softmax_forward_scratch(int64_t key_dim, int64_t value_dim) {
  return query_scratch(key_dim) + kQueryBlock * padded(value_dim) + kPanelKeys * kQueryBlock;
}

/// Computes the results of a block of queries.
void softmax_forward(const SoftmaxForward& work);

/// Gradients from the queries [first, last) of a head. dq and d_query_scale are written; dk and dv, rows as packed, are
/// added to.
struct SoftmaxBackward {
  PackedKeys packed;
  Visibility visibility;
  int64_t first = 0, last = 0;
  Rows q, out, grad, dq;
  int64_t query_origin = 0;
  float scale = 1;
  const float* query_scale = nullptr;
  float* d_query_scale = nullptr;  // [T_q]; null: not wanted
  const SoftmaxStatistics* statistics = nullptr;
  float* dk = nullptr;
  float* dv = nullptr;
  float* scratch = nullptr;  // softmax_backward_scratch(...) numbers
};

constexpr int64_t softmax_backward_scratch(int64_t key_dim, int64_t value_dim) {
  return query_scratch(key_dim) + 2 * query_scratch(value_dim) + (kQueryBlock + 1) * padded(key_dim) +
         2 * kPanelKeys * kQueryBlock;
}

void softmax_backward(const SoftmaxBackward& work);

}  // namespace tamis::kernels
