#pragma once

#include <ATen/core/Tensor.h>

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"

namespace tamis::ops {

struct HeadPassOptions : LinearCrossEntropyOptions {
  bool x_gradient = false;  // which gradients a pass computes
  bool weight_gradient = false;
};

/// One pass of the vocabulary head over all tokens, tile by tile. Checked arguments; below autograd.
struct HeadPass {
  at::Tensor x_TD;             // any strides
  at::Tensor weight_ND;        // the dtype of x: float32, float64 or bfloat16
  at::Tensor target_T;         // int64; tokens with the target options.ignore_index are not read: loss and gradient 0
  at::Tensor loss_gradient_T;  // float64: gradient of each token's loss; undefined: losses only
  HeadPassOptions options;
};

struct HeadPassResult {
  at::Tensor loss_T;  // float64
  at::Tensor x_TD;    // gradients, in the dtype of x; undefined if not requested
  at::Tensor weight_ND;
};

/// Throws c10::IndexError when a target is neither ignore_index nor in [0, N).
HeadPassResult run_head_pass(const HeadPass& pass);

}  // namespace tamis::ops
