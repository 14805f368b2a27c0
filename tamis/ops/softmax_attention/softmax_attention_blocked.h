#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "tamis/ops/softmax_attention/softmax_attention_part.h"
#include "tamis/ops/softmax_attention/softmax_attention_scale.h"

namespace tamis::ops {

/// The blocked forms: plain torch on any device, O(T) memory (README.md, "On other devices"). Half-precision storage
/// computes in float32. Arguments are checked already.
at::Tensor softmax_attention_blocked(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                     const ScaledAttentionOptions& options);

/// Gradients of q, k, v and query_scale (empty without one).
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> softmax_attention_backward_blocked(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
    const ScaledAttentionOptions& options);

/// Over some of the keys: as softmax_attention_part.h.
SoftmaxAttentionPart softmax_attention_part_blocked(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                    const ScaledAttentionOptions& options);
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> softmax_attention_part_backward_blocked(
    const at::Tensor& grad, const SoftmaxAttentionPart& whole, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const ScaledAttentionOptions& options);

}  // namespace tamis::ops
