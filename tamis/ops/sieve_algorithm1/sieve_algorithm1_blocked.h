#pragma once

#include <ATen/core/Tensor.h>

#include <tuple>

#include "tamis/ops/sieve_algorithm1/sieve_algorithm1.h"

namespace tamis::ops {

/// Plain torch on any device, O(T) memory. Half-precision storage computes in float32. Arguments are checked already.
at::Tensor sieve_algorithm1_blocked(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                    const SieveAlgorithm1Options& options);

/// Gradients of q, k and v.
std::tuple<at::Tensor, at::Tensor, at::Tensor> sieve_algorithm1_backward_blocked(const at::Tensor& grad,
                                                                                 const at::Tensor& q,
                                                                                 const at::Tensor& k,
                                                                                 const at::Tensor& v,
                                                                                 const SieveAlgorithm1Options& options);

}  // namespace tamis::ops
