#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>

#include "tamis/ops/attention.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"

// The scales of Scalable-Softmax in plain torch, and what they leave to the definition and the fused form.

namespace tamis::ops {

/// The options of tamis::_softmax_attention: what multiplies the scores, and which keys a query sees.
struct ScaledAttentionOptions {
  std::optional<at::Tensor> query_scale;  // [B, T_q, H], of the scores of each query; unset: 1
  double scale = 1;                       // of every score
  std::optional<int64_t> window;          // as SoftmaxAttentionOptions
  bool strict = false;                    // as SoftmaxAttentionOptions
  std::optional<at::Tensor> document;     // as SoftmaxAttentionOptions; with keys_before int [B, T_k + T_q]
  bool keys_before = false;               // all keys come before the first query: softmax_attention_part alone

  AttentionRange range() const {
    return {.window = window, .strict = strict, .document = document, .keys_before = keys_before};
  }
};

/// The options of the inner operator for those of softmax_attention.
ScaledAttentionOptions scaled(const SoftmaxAttentionOptions& options, const at::Tensor& q_BTHK,
                              const at::Tensor& k_BTHK);

/// c_i = s ln n_i + b or s p_n + b, [B or 1, T_q, H], float32 or float64 as log_scale; nothing without log_scale.
/// Differentiable.
std::optional<at::Tensor> query_scale(const SoftmaxAttentionOptions& options, const at::Tensor& q_BTHK,
                                      const at::Tensor& k_BTHK);

/// s ln n + b for a query that sees n keys of one head.
inline float query_scale(float s, float b, int64_t n) {
  return s * static_cast<float>(std::log(static_cast<double>(std::max<int64_t>(n, 1)))) + b;
}

/// n of each query, the number of keys that it sees, including key_start before the first one; int64 [B or 1, T_q].
at::Tensor visible_keys(const SoftmaxAttentionOptions& options, int64_t queries, const at::Tensor& k_BTHK);

/// p_n for every n >= 1: the entry of the vector, and beyond its end a1 ln n + a2 fitted to it. Differentiable in the
/// entries; the fit is not differentiated.
at::Tensor position_scale_at(const at::Tensor& position_scale, const at::Tensor& n);

namespace reference {

/// softmax(scale query_scale q . k) v over the pairs that see each other, in plain torch.
at::Tensor scaled_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                            const ScaledAttentionOptions& options);

}  // namespace reference
}  // namespace tamis::ops
