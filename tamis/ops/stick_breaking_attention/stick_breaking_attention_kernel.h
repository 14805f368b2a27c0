#pragma once

#include <cstdint>

#include "tamis/kernels/attention.h"

// Stick-breaking attention of one head on raw pointers: no torch, no allocation, no threads. Panels of keys are
// processed from the newest; each query keeps the rest of its stick and the weighted sum of values.

namespace tamis::kernels {

/// One number for each query, `stride` apart; the first is that of position query_origin.
struct QueryNumbers {
  float* data = nullptr;
  int64_t stride = 0;
};

struct StickBreakingForward {
  PackedKeys packed;
  Visibility visibility;
  QueryBlock block;
  Rows q, out;  // row 0 is position query_origin
  QueryNumbers remainder;
  int64_t query_origin = 0;
  float scale = 1;           // of every score
  bool end_early = true;     // when all sticks of a block are used up; changes no bit
  float* scratch = nullptr;  // stick_breaking_forward_scratch(...) numbers
};

constexpr int64_t stick_breaking_forward_scratch(int64_t key_dim, int64_t value_dim) {
  return query_scratch(key_dim) + kQueryBlock * padded(value_dim) + kPanelKeys * kQueryBlock;
}

/// Computes the results of a block of queries.
void stick_breaking_forward(const StickBreakingForward& work);

/// Gradients from the queries [first, last) of a head. dq is written; dk and dv, rows as packed, are added to.
struct StickBreakingBackward {
  PackedKeys packed;
  Visibility visibility;
  int64_t first = 0, last = 0;
  Rows q, grad, dq;
  QueryNumbers grad_remainder;
  int64_t query_origin = 0;
  float scale = 1;
  bool end_early = true;
  float* dk = nullptr;
  float* dv = nullptr;
  float* scratch = nullptr;  // stick_breaking_backward_scratch(...) numbers
};

/// Weights and sigmoids of one block of queries for every key before `last`, and the memory of one panel.
constexpr int64_t stick_breaking_backward_scratch(int64_t last, int64_t key_dim, int64_t value_dim) {
  return query_scratch(key_dim) + query_scratch(value_dim) + kQueryBlock * padded(key_dim) + kPanelKeys * kQueryBlock +
         2 * whole_panels(last) * kQueryBlock;
}

void stick_breaking_backward(const StickBreakingBackward& work);

}  // namespace tamis::kernels
