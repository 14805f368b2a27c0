// Screening at the sizes of a Psi 16 model: 16 heads, K 16, V 64. Argument 0: tokens; 1: windows (0 initial, 1
// infinite, 2 infinite and r near 1: half of the keys are accepted).

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <cmath>

#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/screening_state.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::screening_bench {
namespace {

using at::Tensor;

constexpr int64_t kH = 16, kK = 16, kV = 64;

struct Inputs {
  Tensor q, k, v, gate, s_w, s_r;
};

enum Windows : int64_t { kInitial, kInfinite, kInfiniteHalfAccepted };

Inputs make_inputs(int64_t T, int64_t windows, at::ScalarType dtype) {
  const auto random = [&](int64_t width, uint64_t seed) {
    return testing::random_normal({1, T, kH, width}, seed, dtype).requires_grad_();
  };
  Inputs in{random(kK, 1),  random(kK, 2), random(kV, 3), random(kV, 4), at::linspace(0, std::log(256.0), kH),
            at::zeros({kH})};
  if (windows != kInitial) in.s_w.fill_(95);
  if (windows == kInfiniteHalfAccepted) in.s_r.fill_(9);
  in.s_w.requires_grad_();
  in.s_r.requires_grad_();
  return in;
}

void forward(benchmark::State& state, at::ScalarType dtype) {
  const Inputs in = make_inputs(state.range(0), state.range(1), dtype);
  const at::NoGradGuard no_grad;
  for (auto _ : state) {
    benchmark::DoNotOptimize(screening(in.q, in.k, in.v, in.s_w, in.s_r, {.gate = in.gate}));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void forward_backward(benchmark::State& state, at::ScalarType dtype) {
  const Inputs in = make_inputs(state.range(0), state.range(1), dtype);
  for (auto _ : state) {
    const Tensor out = screening(in.q, in.k, in.v, in.s_w, in.s_r, {.gate = in.gate});
    benchmark::DoNotOptimize(torch::autograd::grad({out}, {in.q, in.k, in.v, in.gate, in.s_w, in.s_r}, {in.gate}));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

/// One token through a state that has seen `range(0)` tokens.
void decode(benchmark::State& state) {
  const Inputs in = make_inputs(state.range(0) + 1, state.range(1), at::kFloat);
  const at::NoGradGuard no_grad;
  ScreeningState sequence(in.s_w, in.s_r, kK, kV);
  const auto slice = [&](const Tensor& x, int64_t first, int64_t last) { return x.detach().slice(1, first, last); };
  const int64_t T = state.range(0);
  sequence.step(slice(in.q, 0, T), slice(in.k, 0, T), slice(in.v, 0, T), slice(in.gate, 0, T));
  const Tensor q = slice(in.q, T, T + 1), k = slice(in.k, T, T + 1), v = slice(in.v, T, T + 1);
  const Tensor gate = slice(in.gate, T, T + 1);
  for (auto _ : state) benchmark::DoNotOptimize(sequence.step(q, k, v, gate));
  state.SetItemsProcessed(state.iterations());
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgsProduct({{4096, 16384}, {kInitial, kInfinite, kInfiniteHalfAccepted}})
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
}

/// torch's softmax attention with 16 heads of 64, the yardstick.
void softmax_attention(benchmark::State& state) {
  const auto random = [&](uint64_t seed) {
    return testing::random_normal({1, kH, state.range(0), kV}, seed).requires_grad_(state.range(1) == 1);
  };
  const Tensor q = random(1), k = random(2), v = random(3);
  for (auto _ : state) {
    const Tensor out = at::scaled_dot_product_attention(q, k, v, std::nullopt, 0.0, /*is_causal=*/true);
    if (state.range(1) == 1) benchmark::DoNotOptimize(torch::autograd::grad({out}, {q, k, v}, {out.detach()}));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

BENCHMARK(softmax_attention)->ArgsProduct({{4096}, {0, 1}})->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(forward, float32, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(forward, bfloat16, at::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(forward_backward, float32, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(forward_backward, bfloat16, at::kBFloat16)->Apply(sizes);
BENCHMARK(decode)->ArgsProduct({{1024, 16384}, {0, 1}})->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace tamis::ops::screening_bench
