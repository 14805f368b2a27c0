#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "tamis/kernels/selection.h"
#include "tamis/ops/attention.h"
#include "tamis/ops/attention_token.h"

// What entmax attention and Sieve, which select by the same threshold, share in front of their kernels.

namespace tamis::ops {

/// The options of both, with the scale filled in.
struct Selection {
  double alpha;
  double scale;
  bool strict;
  std::optional<at::Tensor> document;

  Selection(double alpha_in, double scale_in, bool strict_in, std::optional<at::Tensor> document_in)
      : alpha(alpha_in), scale(scale_in), strict(strict_in), document(std::move(document_in)) {}

  template <typename Options>
  Selection(const Options& options, int64_t key_dim)
      : alpha(options.alpha),
        scale(score_scale(options.scale, key_dim)),
        strict(options.strict),
        document(options.document) {}

  AttentionRange range() const { return {.strict = strict, .document = document}; }
};

/// A mechanism's kernels.
struct SelectionKernels {
  void (*forward)(const kernels::SelectionForward&);
  void (*backward)(const kernels::SelectionBackward&);
};

/// The fused forms: float32, and bfloat16 as storage. Arguments are checked already.
///
/// Returns the result and what the backward pass needs of each query: float32 [B, H, T_q, 2],
/// kernels::SelectionStatistics.
std::tuple<at::Tensor, at::Tensor> selection_cpu(const SelectionKernels& kernels, const at::Tensor& q,
                                                 const at::Tensor& k, const at::Tensor& v, const Selection& selection);

/// One query: the kernel's forward pass.
void selection_token(void (*forward)(const kernels::SelectionForward&), const AttentionToken& token, double alpha);

/// Gradients of q, k and v.
std::tuple<at::Tensor, at::Tensor, at::Tensor> selection_backward_cpu(const SelectionKernels& kernels,
                                                                      const at::Tensor& grad,
                                                                      const at::Tensor& statistics, const at::Tensor& q,
                                                                      const at::Tensor& k, const at::Tensor& v,
                                                                      const Selection& selection);

}  // namespace tamis::ops
