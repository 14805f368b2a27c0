#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tamis::nn {

/// Dropout (Srivastava et al., "Dropout: a simple way to prevent neural networks from overfitting", JMLR 2014) of a
/// step's activations. Which elements are zero is a function of this struct and of an element's place alone, not of
/// the batch that it is computed in: the parts of a step have the same bits on any number of processes, in any number
/// of micro-batches, when recomputed and when a step is replayed.
struct Dropout {
  double share = 0;  // of the elements, in [0, 1); rounded to a multiple of 2^-16
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t first_row = 0;    // of x_BTD in the step's batch
  int64_t first_token = 0;  // of x_BTD in its sequences
  int64_t place = 0;        // in the model: each dropout of a forward pass has its own
};

/// y = x m / (1 - share), m = 0 for a share of the elements and otherwise 1.
///
/// x_BTD     float32, or bfloat16 or float16, for which the product is rounded once
/// Gradient  x, once: m / (1 - share), made again, so that nothing is kept
/// Cost      O(B T D) on the CPU, whose mask is copied for other devices
at::Tensor dropout(const at::Tensor& x_BTD, const Dropout& dropout);

}  // namespace tamis::nn
