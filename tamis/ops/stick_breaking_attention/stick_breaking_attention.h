#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "tamis/ops/attention_token.h"

namespace tamis::ops {

struct StickBreakingOptions {
  std::optional<double> scale;         // of the scores; unset: 1 / sqrt(K)
  bool strict = true;                  // the query's own key is hidden
  std::optional<at::Tensor> document;  // int [B, T_k]: a query sees only keys of its own document
};

/// Stick-breaking attention: each key, from the newest to the oldest, takes a fraction of what newer keys left.
/// "Sieve Attention", section 5; Tan et al., "Scaling Stick-Breaking Attention".
///
///   z_ij         = scale q_i . k_j
///   a_ij         = sigmoid(z_ij) prod_{j < l} (1 - sigmoid(z_il))     over the keys l <= i - 1 of i's document;
///   out_i        = sum_j a_ij v_j                                     not strict: l <= i
///   remainder_i  = prod_l (1 - sigmoid(z_il)) = 1 - sum_j a_ij
///
/// q_BTHK            queries of the last T_q of T_k positions
/// k_BTHK, v_BTHV    keys and values of all T_k positions
/// returns           out [B, T_q, H, V] in the dtype of v; remainder [B, T_q, H], float32 for half-precision storage
///
/// A query that sees no key returns 0 and the remainder 1, and gets the gradient 0.
///
/// Dtype     float32, bfloat16 (all arithmetic in float32); others through the blocked form. Any strides.
/// Gradient  of q, k and v from out and remainder; once (no second derivative).
/// Memory    O(T).  Time O(n (K + V)) per token and head, n being the keys until the stick is used up, less than
///           2^-102 of it being left: older keys are not read, forward or backward.
/// Bits      the same for any number of threads.
/// Throws    c10::ValueError when shapes, dtypes or devices disagree; the text names the argument and both values.
std::tuple<at::Tensor, at::Tensor> stick_breaking_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK,
                                                            const at::Tensor& v_BTHV,
                                                            const StickBreakingOptions& options = {});

/// The result for one query, as the operator's: scores are scale q . k.
void stick_breaking_attention_token(const AttentionToken& token);

namespace reference {

/// The definition, in plain torch: any dtype and device, O(T^2) memory.
std::tuple<at::Tensor, at::Tensor> stick_breaking_attention(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK,
                                                            const at::Tensor& v_BTHV,
                                                            const StickBreakingOptions& options = {});

}  // namespace reference
}  // namespace tamis::ops
