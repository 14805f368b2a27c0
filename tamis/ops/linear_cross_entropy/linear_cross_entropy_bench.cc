// The vocabulary head compared with its three matrix products alone (one without gradients) in one process, to be
// compared as a ratio. Arguments: T, N, D.

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include "tamis/ops/bench_memory.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"

namespace tamis::ops::linear_cross_entropy_bench {
namespace {

struct Case {
  at::Tensor x, weight, target;

  Case(const benchmark::State& state, at::ScalarType dtype)
      : x(at::randn({state.range(0), state.range(2)}).to(dtype)),
        weight((at::randn({state.range(1), state.range(2)}) * 0.05).to(dtype)),
        target(at::randint(state.range(1), {state.range(0)}, at::kLong)) {
    keep_memory();
  }
};

void count_flops(benchmark::State& state, double gemms) {
  const double flops = gemms * 2.0 * static_cast<double>(state.range(0) * state.range(1) * state.range(2));
  state.counters["FLOP/s"] = benchmark::Counter(flops, benchmark::Counter::kIsIterationInvariantRate);
}

void bare_gemms(benchmark::State& state, at::ScalarType dtype, bool gradients) {
  const Case c(state, dtype);
  at::Tensor logits = at::mm(c.x, c.weight.t());
  at::Tensor dx = at::empty_like(c.x), dweight = at::empty_like(c.weight);
  for (auto _ : state) {
    at::mm_out(logits, c.x, c.weight.t());
    if (!gradients) continue;
    at::mm_out(dx, logits, c.weight);
    at::mm_out(dweight, logits.t(), c.x);
  }
  count_flops(state, gradients ? 3 : 1);
}

void head(benchmark::State& state, at::ScalarType dtype, bool gradients) {
  Case c(state, dtype);
  c.x.requires_grad_(gradients);
  c.weight.requires_grad_(gradients);
  for (auto _ : state) {
    const at::Tensor loss = linear_cross_entropy(c.x, c.weight, c.target);
    if (!gradients) continue;
    loss.backward();
    c.x.mutable_grad().reset();
    c.weight.mutable_grad().reset();
  }
  count_flops(state, gradients ? 3 : 1);
}

void sizes(benchmark::internal::Benchmark* benchmark) {
  benchmark->ArgNames({"T", "N", "D"})->Unit(benchmark::kMillisecond)->UseRealTime();
  for (const int64_t entries : {512, 50257}) benchmark->Args({2048, entries, 256});
  benchmark->Args({4096, 50257, 256});
}

BENCHMARK_CAPTURE(bare_gemms, float32_forward, at::kFloat, false)->Apply(sizes);
BENCHMARK_CAPTURE(head, float32_forward, at::kFloat, false)->Apply(sizes);
BENCHMARK_CAPTURE(bare_gemms, float32_training, at::kFloat, true)->Apply(sizes);
BENCHMARK_CAPTURE(head, float32_training, at::kFloat, true)->Apply(sizes);
BENCHMARK_CAPTURE(bare_gemms, bfloat16_training, at::kBFloat16, true)->Apply(sizes);
BENCHMARK_CAPTURE(head, bfloat16_training, at::kBFloat16, true)->Apply(sizes);

}  // namespace
}  // namespace tamis::ops::linear_cross_entropy_bench
