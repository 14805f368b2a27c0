#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tamis/ops/attention_token.h"

namespace tamis::ops {

struct EntmaxAttentionOptions {
  double alpha = 1.5;                  // from 1 (softmax) to 2 (sparsemax)
  std::optional<double> scale;         // of the scores; unset: 1 / sqrt(K)
  bool strict = false;                 // a query does not see its own key
  std::optional<at::Tensor> document;  // int [B, T_k]: a query sees only keys of its own document
};

/// Causal attention with alpha-entmax instead of softmax ("Sieve Attention", Eq. (4); Peters et al. 2019): keys below a
/// threshold have the weight 0.
///
///   z_ij  = scale q_i . k_j
///   p_ij  = max((alpha - 1) z_ij - tau_i, 0)^(1 / (alpha - 1))   over the keys j <= i (strict: j < i) of i's document
///   tau_i   so that sum_j p_ij = 1;  alpha 1: the limit, softmax
///   out_i = sum_j p_ij v_j;          0 where a query sees no key
///
/// q_BTHK            queries of the last T_q of T_k positions
/// k_BTHK, v_BTHV    keys and values of all T_k positions
/// returns           [B, T_q, H, V] in the dtype of v
///
/// The value of a key that is not selected is not read, in either pass.
///
/// Dtype     float32, bfloat16 (all arithmetic in float32); others through the blocked form. Any strides.
/// Gradient  q, k, v; once (no second derivative).
/// Memory    O(T).  Time O(T K) per token and head for the scores, O(K + V) for each selected key.
/// Bits      the same for any number of threads.
/// Throws    c10::ValueError when alpha is not in [1, 2] or shapes, dtypes or devices disagree; the text names the
///           argument and both values.
at::Tensor entmax_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                            const EntmaxAttentionOptions& options = {});

/// The result for one query, as the operator's: scores are scale q . k.
void entmax_attention_token(const AttentionToken& token, double alpha);

namespace reference {

/// The definition, in plain torch: any dtype and device, O(T^2) memory.
at::Tensor entmax_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                            const EntmaxAttentionOptions& options = {});

}  // namespace reference
}  // namespace tamis::ops
