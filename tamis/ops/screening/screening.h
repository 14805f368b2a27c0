#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace tamis::ops {

/// The options that apply to each head.
struct ScreeningHeadOptions {
  double mipe_threshold = 256.0;        // w_th of Eq. (7), tokens; > 0
  std::optional<double> expand_beyond;  // SWE: every window w > expand_beyond becomes infinite
  bool tanh_norm = true;                // false: u = h (ablation)
  std::string position = "mipe";        // "mipe" or "none" (ablation)
  /// Other shapes of Trim and Softmask (ablations that the paper leaves open, appendix Q): a_ij is this power of
  /// max(1 - (1 - s_ij) / r, 0), 1, 2 or 3; m_ij inside the window is "cosine", "linear", 1 - (i - j) / w, or
  /// "none", 1.
  int64_t trim_power = 2;
  std::string softmask = "cosine";

  /// The shapes of the paper, which alone have kernels on the CPU; others run in plain torch there.
  bool has_paper_shapes() const { return trim_power == 2 && softmask == "cosine"; }
};

struct ScreeningOptions : ScreeningHeadOptions {
  std::optional<at::Tensor> gate;      // gate_BTHV: u is multiplied by tanh(SiLU(gate)) on the way out
  std::optional<at::Tensor> document;  // int [B, T_k]: a query sees only keys of its own document
};

/// q, k, v and gate of a sequence of tokens, or their gradients.
struct ScreeningProjections {
  at::Tensor q_BTHK, k_BTHK, v_BTHV;
  std::optional<at::Tensor> gate_BTHV;
};

/// Screening: every key is accepted or rejected on its own; keys do not compete. "Screening Is Enough", Eq. (4)-(14),
/// (17), (18).
///
///   w = exp(s_w) + 1,  r = sigmoid(s_r)                        window in tokens, acceptance width in (0, 1)
///   q, k, v <- unit length; a zero row stays zero and gets no gradient
///   q, k rotated in dimensions 0, 1 at position i by pi i phi(w) / w   (MiPE)
///   phi(w) = (cos(pi w / w_th) + 1) / 2 if w < w_th, else 0
///   s_ij = q_i . k_j                                           in [-1, 1]
///   a_ij = max(1 - (1 - s_ij) / r, 0)^2                        Trim
///   m_ij = (cos(pi (i - j) / w) + 1) / 2 if 0 <= i - j < w     Softmask
///          else 0
///   h_i  = sum_j a_ij m_ij v_j
///   u_i  = tanh(|h_i|) / |h_i| h_i, u = h at h = 0             TanhNorm
///   out  = u * tanh(SiLU(gate))
///
/// q_BTHK            projections of the last T_q of T_k positions, raw: normalised and rotated here; K >= 2
/// k_BTHK, v_BTHV    projections of all T_k positions, raw
/// s_w_H, s_r_H      learned scalars of each head, float32 or float64; s_r = inf means r = 1
/// returns           [B, T_q, H, V] in the dtype of v
///
/// Dtype     float32, float64, bfloat16 and float16 (arithmetic in float32; the gate of the result to 2^-10), the
///           same for q, k, v and gate. Any strides.
/// Gradient  q, k, v, gate, s_w (softmask and MiPE angle), s_r; once (no second derivative).
/// Memory    O(T).  Time O(sum_H min(T, w)) per token for similarities; the value of a rejected key is not read.
/// Bits      the same for any number of threads.
/// Throws    c10::ValueError when shapes, dtypes or devices disagree; the text names the argument and both values.
at::Tensor screening(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                     const at::Tensor& s_w_H, const at::Tensor& s_r_H, const ScreeningOptions& options = {});

/// The same; the gate is that of `in`, options.gate is not used.
at::Tensor screening(const ScreeningProjections& in, const at::Tensor& s_w_H, const at::Tensor& s_r_H,
                     const ScreeningOptions& options = {});

/// Writes the gradients of q, k, v and gate into `gradients`, whose last dimensions must be adjacent, and returns those
/// of s_w and s_r. grad_BTHV is the gradient of the result. If `result_BTHV` is defined (shape and dtype of the result,
/// last dimension adjacent, no overlapping memory; it may be grad_BTHV itself), the result is written to it once more,
/// equal up to rounding: the backward pass sums blocks of other lengths, and computes the gate more precisely than a
/// bfloat16 result needs. This is free where there is a fused form and costs a forward pass elsewhere. Below autograd:
/// nothing is recorded.
std::pair<at::Tensor, at::Tensor> screening_backward_into(const at::Tensor& grad_BTHV, const ScreeningProjections& in,
                                                          const at::Tensor& s_w_H, const at::Tensor& s_r_H,
                                                          const ScreeningOptions& options,
                                                          const ScreeningProjections& gradients,
                                                          const at::Tensor& result_BTHV = {});

namespace reference {

/// The definition, in plain torch: any dtype and device, O(T^2) memory.
at::Tensor screening(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& v_BTHV,
                     const at::Tensor& s_w_H, const at::Tensor& s_r_H, const ScreeningOptions& options = {});

/// Intermediate results of the definition, each [B, H, T_q, T_k], zero outside the window.
struct ScreeningRelevance {
  at::Tensor similarity;  // s_ij
  at::Tensor trim;        // a_ij
  at::Tensor softmask;    // m_ij; relevance = trim * softmask
};
ScreeningRelevance screening_relevance(const at::Tensor& q_BTHK, const at::Tensor& k_BTHK, const at::Tensor& s_w_H,
                                       const at::Tensor& s_r_H, const ScreeningOptions& options = {});

}  // namespace reference
}  // namespace tamis::ops
