#pragma once

#include "tamis/ops/selection/selection_kernel.h"

// Entmax attention of one head on raw pointers: no torch, no allocation, no threads.

namespace tamis::kernels {

/// Computes the results of the queries of a block.
void entmax_forward(const SelectionForward& work);

/// Gradients from the queries [first, last) of a head.
void entmax_backward(const SelectionBackward& work);

}  // namespace tamis::kernels
