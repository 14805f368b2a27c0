#pragma once

// What the tests of screening share. Included by tests only.

#include <ATen/ATen.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "tamis/ops/screening/screening.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::testing {

using at::Tensor;

inline constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Shape {
  int64_t B, T, K, V;
  std::vector<double> widths;   // one head each; infinity: s_w = 95
  std::vector<double> accepts;  // r, repeated over the heads
  int64_t queries = -1;         // T_q; -1: all T
};

/// q, k, v, s_w, s_r, gate. Queries and keys are close to a few directions, so that every r accepts some keys and
/// rejects others; a few rows are zero.
inline Tensors random_inputs(const Shape& shape, uint64_t seed) {
  const auto H = static_cast<int64_t>(shape.widths.size());
  const int64_t T_q = shape.queries < 0 ? shape.T : shape.queries;
  const Tensor directions = random_normal({6, shape.K}, seed);
  const Tensor choice = (random_normal({shape.B, shape.T, H}, seed + 1).abs() * 3).to(at::kLong).clamp_max(5);
  const Tensor centre = directions.index({choice});
  Tensor q = (centre + 0.3 * random_normal(centre.sizes(), seed + 2)).narrow(1, shape.T - T_q, T_q).contiguous();
  Tensor k = centre + 0.3 * random_normal(centre.sizes(), seed + 3);
  Tensor v = random_normal({shape.B, shape.T, H, shape.V}, seed + 4);
  if (shape.T > 2 && T_q > 2) {
    q.select(1, 1).zero_();
    k.select(1, 2).zero_();
    v.select(1, 0).zero_();
  }
  Tensor s_w = at::empty({H}), s_r = at::empty({H});
  for (int64_t h = 0; h < H; ++h) {
    const double r = shape.accepts[h % shape.accepts.size()];
    s_w[h] = std::isinf(shape.widths[h]) ? 95.0 : std::log(shape.widths[h] - 1);
    s_r[h] = std::log(r / (1 - r));
  }
  return {q, k, v, s_w, s_r, random_normal({shape.B, T_q, H, shape.V}, seed + 5)};
}

/// The operator as a function of what random_inputs returns; without the last entry there is no gate.
inline Function operator_with(ScreeningOptions options) {
  return [options](const Tensors& in) mutable {
    options.gate = in.size() > 5 ? std::optional<Tensor>(in[5]) : std::nullopt;
    return Tensors{screening(in[0], in[1], in[2], in[3], in[4], options)};
  };
}

inline Function reference_with(ScreeningOptions options) {
  return [options](const Tensors& in) mutable {
    options.gate = in.size() > 5 ? std::optional<Tensor>(in[5]) : std::nullopt;
    return Tensors{reference::screening(in[0], in[1], in[2], in[3], in[4], options)};
  };
}

/// Expects the operator to satisfy the accuracy rule.
inline void expect_accurate(
    const Shape& shape, uint64_t seed, const ScreeningOptions& options = {},
    const std::function<Tensors(Tensors)>& prepare = [](Tensors in) { return in; }) {
  std::vector<Tensors> samples;
  for (uint64_t i = 0; i < 4; ++i) samples.push_back(prepare(random_inputs(shape, seed + 100 * i)));
  expect_as_accurate_as_plain(operator_with(options), reference_with(options), samples);
}

inline Tensors to_bfloat16(Tensors in) {
  for (const size_t i : {0, 1, 2, 5}) in[i] = in[i].to(at::kBFloat16);
  return in;
}

/// What the tests of screening's decoding states give to a step.
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
