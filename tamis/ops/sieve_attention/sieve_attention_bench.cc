// Sieve attention compared with entmax attention: 16 heads, K = V = 64. Arguments: tokens; spread of the scores in
// hundredths (100: standard normal, few keys are selected; 1: nearly all of them).

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include "tamis/ops/entmax_attention/entmax_attention.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::sieve_attention_bench {
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

void sieve(benchmark::State& state, bool backward) {
  run(state, backward, [](const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
    return sieve_attention(q, k, v, {.scale = scale});
  });
}

void entmax_strict(benchmark::State& state, bool backward) {
  run(state, backward, [](const Tensor& q, const Tensor& k, const Tensor& v, double scale) {
    return entmax_attention(q, k, v, {.scale = scale, .strict = true});
  });
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->ArgsProduct({{4096}, {100, 10, 1}})->Args({16384, 100})->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK_CAPTURE(entmax_strict, forward, false)->Apply(sizes);
BENCHMARK_CAPTURE(sieve, forward, false)->Apply(sizes);
BENCHMARK_CAPTURE(entmax_strict, both, true)->Apply(sizes);
BENCHMARK_CAPTURE(sieve, both, true)->Apply(sizes);

}  // namespace
}  // namespace tamis::ops::sieve_attention_bench
