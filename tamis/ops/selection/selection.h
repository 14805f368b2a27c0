#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "tamis/ops/attention.h"
#include "tamis/ops/attention_token.h"
#include "tamis/ops/selection/selection_kernel.h"

// What entmax attention and Sieve share: both select keys by the threshold of alpha-entmax.

namespace tamis::ops {

/// The options of both, with the scale filled in.
struct Selection {
  double alpha = 1.5;
  double scale = 1;
  bool strict = false;
  std::optional<at::Tensor> document;

  AttentionRange range() const { return {.strict = strict, .document = document}; }
};

template <typename Options>
Selection selection_of(const Options& options, int64_t key_dim) {
  return {.alpha = options.alpha,
          .scale = score_scale(options.scale, key_dim),
          .strict = options.strict,
          .document = options.document};
}

/// A mechanism's kernels.
struct SelectionKernels {
  void (*forward)(const kernels::SelectionForward&);
  void (*backward)(const kernels::SelectionBackward&);
};

/// The fused forms: float32, and bfloat16 as storage. Arguments are checked already.
///
/// Returns the result and what the backward pass needs of each query: float32 [B, H, T_q, 2],
/// kernels::SelectionStatistics.
std::tuple<at::Tensor, at::Tensor> selection_cpu(const SelectionKernels& kernels, const Selection& selection,
                                                 const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Gradients of q, k and v.
std::tuple<at::Tensor, at::Tensor, at::Tensor> selection_backward_cpu(const SelectionKernels& kernels,
                                                                      const Selection& selection,
                                                                      const at::Tensor& grad,
                                                                      const at::Tensor& statistics, const at::Tensor& q,
                                                                      const at::Tensor& k, const at::Tensor& v);

/// One query: the kernel's forward pass.
void selection_token(void (*forward)(const kernels::SelectionForward&), const AttentionToken& token, double alpha);

/// A mechanism's weights in plain torch, for the blocked forms. z are scores [rows, queries, keys], all keys of a query
/// in order; u is (alpha - 1) z - tau for selected keys and 0 for the others; at alpha 1 it is infinite for every
/// visible key.
struct SelectedWeights {
  at::Tensor (*forward)(const at::Tensor& z, const at::Tensor& u, double alpha);
  /// The weights and dz for the gradient dweight of the weights, which may be overwritten.
  std::tuple<at::Tensor, at::Tensor> (*backward)(const at::Tensor& z, const at::Tensor& u, double alpha,
                                                 const at::Tensor& dweight);
};
const SelectedWeights& entmax_weights();
const SelectedWeights& sieve_weights();

/// The blocked forms: plain torch on any device, O(T) memory (README.md, "On other devices"). Half-precision storage
/// computes in float32. Arguments are checked already.
at::Tensor selection_blocked(const SelectedWeights& weights, const Selection& selection, const at::Tensor& q,
                             const at::Tensor& k, const at::Tensor& v);

/// Gradients of q, k and v.
std::tuple<at::Tensor, at::Tensor, at::Tensor> selection_backward_blocked(const SelectedWeights& weights,
                                                                          const Selection& selection,
                                                                          const at::Tensor& grad, const at::Tensor& q,
                                                                          const at::Tensor& k, const at::Tensor& v);

namespace reference {

/// (alpha - 1) z - tau over the last dimension, where `visible`; -infinity elsewhere. Positive for selected keys, and
/// infinite at alpha 1, where every key is selected. By bisection, to the precision of z; not differentiable.
at::Tensor entmax_excess(const at::Tensor& z, const at::Tensor& visible, double alpha);

}  // namespace reference
}  // namespace tamis::ops
