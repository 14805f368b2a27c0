#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tamis/ops/attention_token.h"

namespace tamis::ops {

struct SoftmaxAttentionOptions {
  std::optional<double> scale;               // of the scores; unset: 1 / sqrt(K)
  std::optional<int64_t> window;             // keys that a query sees; >= 1; unset: all before it
  bool strict = false;                       // a query does not see its own key; else a window includes it
  std::optional<at::Tensor> log_scale;       // s [H] of Scalable-Softmax
  std::optional<at::Tensor> log_bias;        // b [H], needs log_scale
  std::optional<at::Tensor> position_scale;  // p [P]: p_n instead of ln n, needs log_scale
  int64_t key_start = 0;                     // absolute position of the first key
  std::optional<at::Tensor> document;        // int [B, T_k]: a query sees only keys of its own document
};

/// Causal softmax attention, sliding-window attention and Scalable-Softmax ("Scalable-Softmax Is Superior for
/// Attention", Eq. (2), (3), (11)).
///
///   z_ij  = scale q_i . k_j
///   c_i   = s ln n_i + b          n_i: keys that query i sees; with position_scale p_n for ln n; 1 without log_scale
///   p_ij  = exp(c_i z_ij) / sum_l exp(c_i z_il)      over the keys i - window < j <= i of i's document;
///                                                    strict: i - window <= j < i
///   out_i = sum_j p_ij v_j; 0 where a query sees no key
///
/// q_BTHK            queries of the last T_q of T_k positions, position-encoded already (rotary embedding is outside)
/// k_BTHK, v_BTHV    keys and values of all T_k positions
/// returns           [B, T_q, H, V] in the dtype of v
///
/// n_i is counted from the beginning of the document and includes key_start keys before the first given one. Beyond the
/// end of position_scale, p_n is a1 ln n + a2, fitted to it by least squares.
///
/// Dtype     float32, bfloat16 (all arithmetic in float32); others through the blocked form. Any strides.
/// Gradient  q, k, v, log_scale, log_bias, position_scale; once (no second derivative).
/// Memory    O(T).  Time O(min(T, window) (K + V)) per token and head; keys before every window are not read.
/// Bits      the same for any number of threads; gradients of log_scale, log_bias and position_scale are sums of torch.
/// Throws    c10::ValueError when shapes, dtypes or devices disagree; the text names the argument and both values.
at::Tensor softmax_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                             const SoftmaxAttentionOptions& options = {});

/// The result for one query, as the operator's: scores are scale q . k.
void softmax_attention_token(const AttentionToken& token);

namespace reference {

/// The definition, in plain torch: any dtype and device, O(T^2) memory.
at::Tensor softmax_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                             const SoftmaxAttentionOptions& options = {});

}  // namespace reference
}  // namespace tamis::ops
