// Entmax attention compared with softmax attention: 16 heads, K = V = 64. Arguments: tokens; spread of the scores in
// hundredths (100: standard normal, few keys are selected; 1: nearly all of them).

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include "tamis/ops/entmax_attention/entmax_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::entmax_attention_bench {
namespace {

using at::Tensor;

template <typename Attention>
void run(benchmark::State& state, bool backward, const Attention& attention) {
  const auto random = [&](uint64_t seed) {
    return testing::random_normal({1, state.range(0), 16, 64}, seed).requires_grad_(backward);
  };
  const Tensor q = random(1), k = random(2), v = random(3), grad = v.detach();
  const double scale = static_cast<double>(state.range(1)) / 800;
  for (auto _ : state) {
    const Tensor out = attention(q, k, v, scale);
    if (backward) benchmark::DoNotOptimize(torch::autograd::grad({out}, {q, k, v}, {grad}));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void entmax(benchmark::State& state, double alpha, bool backward) {
  run(state, backward, [&](const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
    return entmax_attention(q, k, v, {.alpha = alpha, .scale = scale});
  });
}

void softmax(benchmark::State& state, bool backward) {
  run(state, backward, [&](const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
    return softmax_attention(q, k, v, {.scale = scale});
  });
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgsProduct({{4096}, {100, 1}})->Args({16384, 100})->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK_CAPTURE(softmax, forward, false)->Args({4096, 100})->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(softmax, both, true)->Args({4096, 100})->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(entmax, forward_1 .5, 1.5, false)->Apply(sizes);
BENCHMARK_CAPTURE(entmax, both_1 .5, 1.5, true)->Apply(sizes);
BENCHMARK_CAPTURE(entmax, forward_2, 2.0, false)->Args({4096, 100})->Unit(benchmark::kMillisecond)->UseRealTime();
BENCHMARK_CAPTURE(entmax, forward_1 .25, 1.25, false)->Args({4096, 100})->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace
}  // namespace tamis::ops::entmax_attention_bench
