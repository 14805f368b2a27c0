#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <tuple>

#include "tamis/ops/blocked.h"

// What the blocked forms share of attention whose scores are scaled products of queries and keys and whose result is a
// weighted sum of values: softmax, the selections by alpha-entmax, stick-breaking, Sieve's Algorithm 1.

namespace tamis::ops {

/// The rows of a call in the dtype that it computes in, queries multiplied by the scale.
struct AttentionRows {
  double scale;
  QueryBlocks blocks;
  at::Tensor q, k, v;

  /// `span`: as QueryBlocks.
  AttentionRows(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV, double scale,
                int64_t span, const AttentionRange& range);

  /// z of a step.
  at::Tensor scores(const BlockStep& step) const;
};

/// The gradients of q, k and v, step by step.
class AttentionGradients {
 public:
  /// `grad`: of the result, [B, T_q, H, V]. The rows outlive the gradients.
  AttentionGradients(const AttentionRows& rows, const at::Tensor& grad_BTHV);

  /// The gradient of the step's weights: grad v^T.
  at::Tensor of_weights(const BlockStep& step) const;
  /// Adds what the step contributes with its weights and the gradient of its scores.
  void add(const BlockStep& step, const at::Tensor& weights, const at::Tensor& dscores);
  /// In the dtypes of q, k and v.
  std::tuple<at::Tensor, at::Tensor, at::Tensor> result(const at::Tensor& q, const at::Tensor& k,
                                                        const at::Tensor& v) const;

 private:
  const AttentionRows& rows_;
  at::Tensor dout_, dq_, dk_, dv_;
};

/// The gradients of a call without queries.
std::tuple<at::Tensor, at::Tensor, at::Tensor> zero_gradients(const at::Tensor& q, const at::Tensor& k,
                                                              const at::Tensor& v);

}  // namespace tamis::ops
