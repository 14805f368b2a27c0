#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "tamis/ops/softmax_attention/softmax_attention_scale.h"

// Softmax attention over some of the keys. Parts over different keys merge into the whole, so that a process needs to
// hold only one part of them at a time ("Ring Attention with Blockwise Transformers for Near-Infinite Context").
// Any device and dtype: float32 and bfloat16 on the CPU have kernels. Everything else is plain torch, block by block.

namespace tamis::ops {

struct SoftmaxAttentionPart {
  // In float32, or float64 for inputs of it.
  at::Tensor out;         // [B, T_q, H, V]; 0 where a query sees none of the keys
  at::Tensor statistics;  // [B, H, T_q, 2]: largest score, inverse of the sum of exponentials. Without keys the latter
                          // is 0, and the former means nothing
};

/// What softmax_attention computes, over the given keys. Not differentiable by itself.
SoftmaxAttentionPart softmax_attention_part(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK,
                                            const at::Tensor& v_BTHV, const ScaledAttentionOptions& options);

/// The same queries' result over the keys of both.
SoftmaxAttentionPart merged(const SoftmaxAttentionPart& a, const SoftmaxAttentionPart& b);

/// Gradients of q, k, v and query_scale (empty without one) that come from these keys; `whole` is the result over all
/// keys, `grad` its gradient. Those of q and query_scale add up over the parts.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> softmax_attention_part_backward(
    const at::Tensor& grad, const SoftmaxAttentionPart& whole, const at::Tensor& q_BTHK, const at::Tensor& k_BTHK,
    const at::Tensor& v_BTHV, const ScaledAttentionOptions& options);

}  // namespace tamis::ops
