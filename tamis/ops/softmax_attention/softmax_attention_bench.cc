// Softmax attention with 16 heads of 64 compared with torch's own. Arguments: tokens, window (0: none).

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::softmax_attention_bench {
namespace {

using at::Tensor;

constexpr int64_t kH = 16, kD = 64;

struct Inputs {
  Tensor q, k, v;
};

Inputs make_inputs(int64_t T, bool gradients, at::ScalarType dtype = at::kFloat) {
  const auto random = [&](uint64_t seed) {
    return testing::random_normal({1, T, kH, kD}, seed, dtype).requires_grad_(gradients);
  };
  return {random(1), random(2), random(3)};
}

/// Two for each multiply-add: two products forward, five more backward, of the pairs that see each other.
void set_flops(benchmark::State& state, bool backward) {
  const double T = static_cast<double>(state.range(0));
  const double w = state.range(1) == 0 ? T : std::min(T, static_cast<double>(state.range(1)));
  const double pairs = w * T - w * (w - 1) / 2;
  state.counters["FLOP/s"] =
      benchmark::Counter(pairs * kH * kD * 2 * (backward ? 7 : 2), benchmark::Counter::kIsIterationInvariantRate);
}

template <typename Attention>
void measure(benchmark::State& state, bool backward, at::ScalarType dtype, const Attention& attention) {
  const Inputs in = make_inputs(state.range(0), backward, dtype);
  for (auto _ : state) {
    const Tensor out = attention(in);
    if (backward) benchmark::DoNotOptimize(torch::autograd::grad({out}, {in.q, in.k, in.v}, {out.detach()}));
  }
  set_flops(state, backward);
}

void ours(benchmark::State& state, bool backward, at::ScalarType dtype) {
  SoftmaxAttentionOptions options;
  if (state.range(1) > 0) options.window = state.range(1);
  measure(state, backward, dtype, [&](const Inputs& in) { return softmax_attention(in.q, in.k, in.v, options); });
}

void torchs(benchmark::State& state, bool backward, at::ScalarType dtype) {
  measure(state, backward, dtype, [&](const Inputs& in) {
    return at::scaled_dot_product_attention(in.q.transpose(1, 2), in.k.transpose(1, 2), in.v.transpose(1, 2),
                                            std::nullopt, 0.0, /*is_causal=*/true)
        .transpose(1, 2);
  });
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->Args({4096, 0})->Args({4096, 256})->Args({16384, 256})->Unit(benchmark::kMillisecond)->UseRealTime();
}
void sizes_of_torch(benchmark::internal::Benchmark* bench) {
  bench->Args({4096, 0})->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK_CAPTURE(ours, forward / float32, false, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(ours, forward_backward / float32, true, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(ours, forward / bfloat16, false, at::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(ours, forward_backward / bfloat16, true, at::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(torchs, forward / float32, false, at::kFloat)->Apply(sizes_of_torch);
BENCHMARK_CAPTURE(torchs, forward_backward / float32, true, at::kFloat)->Apply(sizes_of_torch);

}  // namespace
}  // namespace tamis::ops::softmax_attention_bench
