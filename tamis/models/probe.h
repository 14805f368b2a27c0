#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace tamis::models {

/// How a mixer combines values, on the path that forward() executes, for one sequence: linear in values of unit length,
/// and for each head separately.
struct ValuePath {
  at::Tensor v_1THV;                                             // the mixer's values; they give T, H, dtype and device
  std::function<at::Tensor(const at::Tensor& values_1THC)> mix;  // any values -> [1, T, H, C]
};

/// The magnitude of the weight that each query gives to each key's value, [H, T, T], from unit vectors as values.
at::Tensor relevance_map(const ValuePath& path);

/// The last row of each head's relevance map, [H, T], in memory O(T): a gradient of the mix.
at::Tensor last_relevance(const ValuePath& path);

/// The share of the last query's relevance that lies on keys [first, last), float64 [H]; 0 where a head accepts
/// nothing.
at::Tensor attention_mass(const ValuePath& path, int64_t first, int64_t last);

}  // namespace tamis::models
