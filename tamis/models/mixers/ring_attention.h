#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "tamis/distributed/context_group.h"

namespace tamis::ops {
struct SoftmaxAttentionOptions;
}

namespace tamis::models {

/// ops::softmax_attention of a sequence that the processes of `context` share, T tokens each: the same equations, with
/// memory O(T) instead of O(size T). In step d a process takes the keys and values of the process d to its left, while
/// those of the next step are on the way, and merges the results. The backward pass does so once more, and sends the
/// gradients of keys and values back.
///
/// q_BTHK, k_BTHK, v_BTHV  the own tokens
/// options                 as of the operator, without `window` and `key_start`; `document` is that of the whole
///                         sequence, int [B, size T]
/// returns                 [B, T, H, V] in the dtype of v. Differentiable; every process takes part in both passes.
at::Tensor ring_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                          const ops::SoftmaxAttentionOptions& options, distributed::ContextGroup& context);

/// Rows of keys and values that process `rank` sends in the forward pass. In the backward pass it sends as many, and
/// `rank * tokens` rows of gradients.
int64_t ring_rows_sent(int64_t rank, int64_t size, int64_t tokens);

}  // namespace tamis::models
