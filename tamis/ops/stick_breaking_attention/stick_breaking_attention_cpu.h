#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "tamis/ops/attention.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"

namespace tamis::ops {

AttentionRange range_of(const StickBreakingOptions& options);

/// Whether the pass over the keys ends when nothing is left of any stick. It changes no bit; tests compare both.
enum class KeyPass { kUntilNothingIsLeft, kWhole };

/// The fused forms: float32, and bfloat16 as storage. Arguments are checked already.
std::tuple<at::Tensor, at::Tensor> stick_breaking_attention_cpu(const at::Tensor& q, const at::Tensor& k,
                                                                const at::Tensor& v,
                                                                const StickBreakingOptions& options,
                                                                KeyPass pass = KeyPass::kUntilNothingIsLeft);

/// Gradients of q, k and v.
std::tuple<at::Tensor, at::Tensor, at::Tensor> stick_breaking_attention_backward_cpu(
    const at::Tensor& grad, const at::Tensor& grad_remainder, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const StickBreakingOptions& options, KeyPass pass = KeyPass::kUntilNothingIsLeft);

}  // namespace tamis::ops
