#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <tuple>

#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"

namespace tamis::ops {

/// The blocked forms: plain torch on any device, O(T) memory (README.md, "On other devices"). Half-precision storage
/// computes in float32. Arguments are checked already.
std::tuple<at::Tensor, at::Tensor> stick_breaking_attention_blocked(const at::Tensor& q, const at::Tensor& k,
                                                                    const at::Tensor& v,
                                                                    const StickBreakingOptions& options);

/// Gradients of q, k and v.
std::tuple<at::Tensor, at::Tensor, at::Tensor> stick_breaking_attention_backward_blocked(
    const at::Tensor& grad, const at::Tensor& grad_remainder, const at::Tensor& q, const at::Tensor& k,
    const at::Tensor& v, const StickBreakingOptions& options);

/// Stick-breaking over rows of scores, keys in the order of time, the newest last; shared with Sieve.
struct Sticks {
  /// Fills the pairs that take no part.
  using Hide = std::function<void(const at::Tensor& pairs, double value)>;

  at::Tensor weight;    // a
  at::Tensor log_left;  // sum of log(1 - sigmoid(z)) over a key and all newer ones

  Sticks(const at::Tensor& z, const Hide& hide);

  /// log r, [.., 1]
  at::Tensor log_remainder() const { return log_left.narrow(-1, 0, 1); }
  /// dz for the gradient da, which is overwritten; `remainder_part` is r dr, [.., 1], perhaps not defined.
  at::Tensor gradient(const at::Tensor& z, const at::Tensor& da, const at::Tensor& remainder_part,
                      const Hide& hide) const;
};

}  // namespace tamis::ops
