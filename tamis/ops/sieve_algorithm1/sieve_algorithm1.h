#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

namespace tamis::ops {

struct SieveAlgorithm1Options {
  double epsilon = 1e-6;        // above 0: how far below the highest score a key may lie; the paper gives no number
  std::optional<double> scale;  // of the scores; unset: 1 / sqrt(K)
  bool strict = true;           // a query does not see its own key
  std::optional<at::Tensor> document;  // int [B, T_k]: a query sees only keys of its own document
};

/// Sieve attention as Algorithm 1 in appendix C of "Sieve Attention: Fusing Context-Aware Filtering and Sequential
/// Allocation for Long Sequences" computes it, which is not what the paper's equations say (sieve_attention.h): the
/// highest score is the threshold, and every visible key breaks the stick, the oldest first.
///
///   z_ij  = scale q_i . k_j        over the keys j < i (not strict: j <= i) of i's document
///
///   S_i   = {j : z_ij >= max_l z_il - epsilon}                             lines 7 and 13
///
///   a_ij  = sigmoid(z_ij) prod_{l < j} (1 - sigmoid(z_il))  for j in S_i, else 0      lines 14 to 17
///
///   out_i = sum_j a_ij v_j; 0 where a query sees no key
///
/// q_BTHK            queries of the last T_q of T_k positions, without a positional encoding
/// k_BTHK, v_BTHV    keys and values of all T_k positions
/// returns           [B, T_q, H, V] in the dtype of v
///
/// For studies: plain torch, block by block, without kernels of its own.
///
/// Dtype     any floating point; half precision computes in float32. Any device and strides.
/// Gradient  q, k, v; once. None through the selection, but keys outside of S break the stick and get one.
/// Memory    O(T).  Time O(T (K + V)) per token and head.
/// Throws    c10::ValueError when epsilon is not above 0 or shapes, dtypes or devices disagree; the text names the
///           argument and both values.
at::Tensor sieve_algorithm1(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                            const SieveAlgorithm1Options& options = {});

namespace reference {

/// The definition, in plain torch: any dtype and device, O(T^2) memory.
at::Tensor sieve_algorithm1(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                            const SieveAlgorithm1Options& options = {});

}  // namespace reference
}  // namespace tamis::ops
