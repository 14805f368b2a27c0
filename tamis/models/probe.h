#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace tamis::models {

/// What a mixer that is linear in its values multiplies each of them by, read off the path that computes: `mix` gets
/// values that are 1 in one place each.
///
/// v_1THV   the values whose place the probes take: T, H, dtype and device
/// mix      values [1, T, H, C] -> [1, T, H, C]
/// returns  [H, T, T]: row i, column j is the weight of value j in the result of query i
at::Tensor probed_weights(const at::Tensor& v_1THV, const std::function<at::Tensor(const at::Tensor& v)>& mix);

}  // namespace tamis::models
