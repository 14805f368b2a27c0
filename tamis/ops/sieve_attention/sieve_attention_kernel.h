#pragma once

#include "tamis/ops/selection/selection_kernel.h"

// Sieve attention of one head on raw pointers: no torch, no allocation, no threads.

namespace tamis::kernels {

/// Computes the results of the queries of a block.
void sieve_forward(const SelectionForward& work);

/// Gradients from the queries [first, last) of a head.
void sieve_backward(const SelectionBackward& work);

}  // namespace tamis::kernels
