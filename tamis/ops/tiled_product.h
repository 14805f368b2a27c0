#pragma once

#include <ATen/core/Tensor.h>

namespace tamis::ops {

/// A B of matrices in tiles of the result that at::mm computes on one thread each. The tiles follow from the shape, so
/// the bits are the same for any number of threads.
at::Tensor tiled_product(const at::Tensor& a_MK, const at::Tensor& b_KN);

}  // namespace tamis::ops
