#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace tamis::models {

/// What a mixer does with values between its projections, on the path that computes, for one sequence. Values of unit
/// length go in, and what comes out is linear in them; heads do not see each other.
struct ValuePath {
  at::Tensor v_1THV;                                             // its own values: T, H, dtype and device are theirs
  std::function<at::Tensor(const at::Tensor& values_1THC)> mix;  // any values -> [1, T, H, C]
};

/// What each query multiplies each key's value by, without the sign, [H, T, T]: the mix of values that are 1 in one
/// place each.
at::Tensor relevance_map(const ValuePath& path);

/// The last row of each head's relevance map, [H, T], in memory O(T): a gradient of the mix.
at::Tensor last_relevance(const ValuePath& path);

/// The share of the last query's relevance that lies on keys [first, last), float64 [H]; 0 where a head accepts
/// nothing.
at::Tensor attention_mass(const ValuePath& path, int64_t first, int64_t last);

}  // namespace tamis::models
