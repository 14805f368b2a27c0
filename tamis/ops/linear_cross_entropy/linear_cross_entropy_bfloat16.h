#pragma once

#include <ATen/core/Tensor.h>

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_tiles.h"

namespace tamis::ops {

/// Whether this machine and this LibTorch multiply bfloat16 matrices of that width with sums in float32 at full speed.
bool has_bfloat16_products(int64_t width);

/// The pass of the vocabulary head for x and weight in bfloat16, where has_bfloat16_products.
HeadPassResult run_bfloat16_head(const HeadPass& pass, const CountedTokens& tokens);

}  // namespace tamis::ops
