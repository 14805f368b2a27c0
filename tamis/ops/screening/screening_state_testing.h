#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "tamis/ops/testing.h"

// What the tests of screening's decoding states share.

namespace tamis::ops::testing {

struct StateInputs {
  at::Tensor q, k, v, gate;

  StateInputs slice(int64_t first, int64_t last) const {
    return {q.slice(1, first, last), k.slice(1, first, last), v.slice(1, first, last), gate.slice(1, first, last)};
  }
  StateInputs to(at::ScalarType dtype) const { return {q.to(dtype), k.to(dtype), v.to(dtype), gate.to(dtype)}; }
};

/// Queries and keys around a common centre, so that many pairs are accepted.
inline StateInputs random_state_inputs(int64_t B, int64_t T, int64_t H, int64_t K, int64_t V, uint64_t seed) {
  const at::Tensor centre = random_normal({1, 1, H, K}, seed + 9);
  return {centre + random_normal({B, T, H, K}, seed), centre + random_normal({B, T, H, K}, seed + 1),
          random_normal({B, T, H, V}, seed + 2), random_normal({B, T, H, V}, seed + 3)};
}

/// The results of step(part) for the parts of x with these lengths, one after the other.
template <typename Step>
at::Tensor in_pieces(const StateInputs& x, const std::vector<int64_t>& lengths, const Step& step) {
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (const int64_t length : lengths) {
    parts.push_back(step(x.slice(first, first + length)));
    first += length;
  }
  return at::cat(parts, 1);
}

}  // namespace tamis::ops::testing
