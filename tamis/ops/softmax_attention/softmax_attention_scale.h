#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tamis/ops/attention.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"

// What of the options the definition and the fused form read alike.

namespace tamis::ops {

/// What multiplies the scores: one number, and one for each query and head ([B, T_q, H]).
struct ScoreScale {
  double scale;
  std::optional<at::Tensor> query_scale;
};

AttentionRange range_of(const SoftmaxAttentionOptions& options);

/// c_i = s ln n_i + b or s p_n + b, [B or 1, T_q, H], float32 or float64 as log_scale; nothing without log_scale.
/// Differentiable.
std::optional<at::Tensor> query_scale(const SoftmaxAttentionOptions& options, const at::Tensor& q_BTHK,
                                      const at::Tensor& k_BTHK);

/// n of each query: how many keys it sees, those before the first one that is given included; int64 [B or 1, T_q].
at::Tensor visible_keys(const SoftmaxAttentionOptions& options, int64_t queries, const at::Tensor& k_BTHK);

/// p_n for every n >= 1: the vector where it has an entry, beyond it a1 ln n + a2 fitted to it. Differentiable in the
/// entries that are read; the fit is not differentiated.
at::Tensor position_scale_at(const at::Tensor& position_scale, const at::Tensor& n);

namespace reference {

/// softmax(scale query_scale q . k) v over the pairs that see each other, in plain torch.
at::Tensor attend(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV, const ScoreScale& scale,
                  const AttentionRange& range);

}  // namespace reference
}  // namespace tamis::ops
