#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tamis::nn {

/// Fills a float32 CPU matrix (or a view of rows of one) with N(0, deviation). Every row has a random stream of its
/// own, named by (seed, stream, row): the bits depend on these and the shape, not on threads or on what was drawn
/// before.
void fill_normal(const at::Tensor& matrix, double deviation, uint64_t seed, uint64_t stream);

}  // namespace tamis::nn
