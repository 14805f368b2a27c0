#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tamis/ops/attention_token.h"

namespace tamis::ops {

struct SieveAttentionOptions {
  double alpha = 1.5;                  // of the selection, from 1 (everything) to 2 (fewest)
  std::optional<double> scale;         // of the scores; unset: 1 / sqrt(K)
  bool strict = true;                  // a query does not see its own key
  std::optional<at::Tensor> document;  // int [B, T_k]: a query sees only keys of its own document
};

/// Sieve attention ("Sieve Attention: Fusing Context-Aware Filtering and Sequential Allocation for Long Sequences",
/// Eq. (4)-(7)): alpha-entmax selects, stick-breaking over the selected keys alone allocates, the newest first.
///
///   z_ij  = scale q_i . k_j        over the keys j < i (not strict: j <= i) of i's document
///
///   S_i   = {j : (alpha - 1) z_ij > tau_i}, the support of alpha-entmax(z_i); alpha 1: all of them
///
///   a_ij  = sigmoid(z_ij) prod_{l in S_i, l > j} (1 - sigmoid(z_il))  for j in S_i, else 0
///
///   out_i = sum_j a_ij v_j; 0 where a query sees no key
///
/// q_BTHK            queries of the last T_q of T_k positions, without a positional encoding
/// k_BTHK, v_BTHV    keys and values of all T_k positions
/// returns           [B, T_q, H, V] in the dtype of v
///
/// The value of a key that is not selected is not read, in either pass.
///
/// Dtype     float32, bfloat16 (all arithmetic in float32); others through the blocked form. Any strides.
/// Gradient  q, k, v; once. None through the selection: tau only decides.
/// Memory    O(T).  Time O(T K) per token and head for the scores, O(K + V) for each selected key.
/// Bits      the same for any number of threads.
/// Throws    c10::ValueError when alpha is not in [1, 2] or shapes, dtypes or devices disagree; the text names the
///           argument and both values.
at::Tensor sieve_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                           const SieveAttentionOptions& options = {});

/// The result for one query, as the operator's: scores are scale q . k.
void sieve_attention_token(const AttentionToken& token, double alpha);

namespace reference {

/// The definition, in plain torch: any dtype and device, O(T^2) memory.
at::Tensor sieve_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                           const SieveAttentionOptions& options = {});

}  // namespace reference
}  // namespace tamis::ops
