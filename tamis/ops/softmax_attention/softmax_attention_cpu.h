#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "tamis/ops/softmax_attention/softmax_attention_scale.h"

namespace tamis::ops {

/// The fused forms: float32, and bfloat16 as storage. Arguments are checked already.
///
/// Returns the result, the same in float32 (empty where it is float32 already), and what else the backward pass needs
/// of each query: float32 [B, H, T_q, 2], the largest score and the inverse of the sum of exponentials.
std::tuple<at::Tensor, at::Tensor, at::Tensor> softmax_attention_cpu(const at::Tensor& q, const at::Tensor& k,
                                                                     const at::Tensor& v,
                                                                     const ScaledAttentionOptions& options);

/// Gradients of q, k, v and query_scale (empty without one).
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> softmax_attention_backward_cpu(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const at::Tensor& out_float32, const at::Tensor& statistics, const ScaledAttentionOptions& options);

}  // namespace tamis::ops
