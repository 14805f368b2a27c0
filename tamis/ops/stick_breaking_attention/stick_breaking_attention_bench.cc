// Stick-breaking attention with 16 heads of 64 compared with torch's softmax. Arguments: tokens, shift of the scores
// (0: sticks of some 130 keys; -8: nothing ends early).

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <cmath>

#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::stick_breaking_attention_bench {
namespace {

using at::Tensor;

constexpr int64_t kH = 16, kD = 64;

struct Inputs {
  Tensor q, k, v;
};

Inputs make_inputs(int64_t T, double shift, bool gradients, at::ScalarType dtype) {
  const auto random = [&](uint64_t seed) { return testing::random_normal({1, T, kH, kD}, seed, dtype); };
  const Inputs in{random(1), random(2), random(3)};
  if (shift != 0) {
    in.q.select(3, 0).fill_(std::sqrt(static_cast<double>(kD)));
    in.k.select(3, 0).fill_(shift);
  }
  for (const Tensor& x : {in.q, in.k, in.v}) x.requires_grad_(gradients);
  return in;
}

/// Two for each multiply-add: two products forward, five more backward, of all pairs, looked at or not.
template <typename Attention>
void measure(benchmark::State& state, bool backward, at::ScalarType dtype, const Attention& attention) {
  const int64_t T = state.range(0);
  const Inputs in = make_inputs(T, static_cast<double>(state.range(1)), backward, dtype);
  for (auto _ : state) {
    const Tensor out = attention(in);
    if (backward) benchmark::DoNotOptimize(torch::autograd::grad({out}, {in.q, in.k, in.v}, {out.detach()}));
  }
  const double pairs = static_cast<double>(T) * static_cast<double>(T) / 2;
  state.counters["FLOP/s"] =
      benchmark::Counter(pairs * kH * kD * 2 * (backward ? 7 : 2), benchmark::Counter::kIsIterationInvariantRate);
}

void ours(benchmark::State& state, bool backward, at::ScalarType dtype) {
  measure(state, backward, dtype,
          [](const Inputs& in) { return std::get<0>(stick_breaking_attention(in.q, in.k, in.v)); });
}

void softmax_of_torch(benchmark::State& state, bool backward, at::ScalarType dtype) {
  measure(state, backward, dtype, [](const Inputs& in) {
    return at::scaled_dot_product_attention(in.q.transpose(1, 2), in.k.transpose(1, 2), in.v.transpose(1, 2),
                                            std::nullopt, 0.0, /*is_causal=*/true)
        .transpose(1, 2);
  });
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgsProduct({{4096}, {0, -8}})->Args({16384, 0})->Unit(benchmark::kMillisecond)->UseRealTime();
}
void one_size(benchmark::internal::Benchmark* bench) {
  bench->Args({4096, 0})->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK_CAPTURE(ours, forward / float32, false, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(ours, forward_backward / float32, true, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(ours, forward / bfloat16, false, at::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(ours, forward_backward / bfloat16, true, at::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(softmax_of_torch, forward / float32, false, at::kFloat)->Apply(one_size);
BENCHMARK_CAPTURE(softmax_of_torch, forward_backward / float32, true, at::kFloat)->Apply(one_size);

}  // namespace
}  // namespace tamis::ops::stick_breaking_attention_bench
