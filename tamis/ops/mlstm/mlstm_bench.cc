// The mLSTM with 4 heads of K 64, V 128. Argument: tokens.

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include "tamis/ops/mlstm/mlstm.h"
#include "tamis/ops/testing.h"

namespace tamis::ops::mlstm_bench {
namespace {

using at::Tensor;

constexpr int64_t kH = 4, kK = 64, kV = 128;

struct Inputs {
  Tensor q, k, v, i, f;
};

Inputs make_inputs(int64_t T, bool gradients, at::ScalarType dtype) {
  const auto random = [&](int64_t width, uint64_t seed) {
    return testing::random_normal({1, T, kH, width}, seed, dtype);
  };
  const auto gate = [&](double mean, uint64_t seed) { return testing::random_normal({1, T, kH}, seed) + mean; };
  const Inputs in{random(kK, 1), random(kK, 2), random(kV, 3), gate(0, 4), gate(3, 5)};
  for (const Tensor& x : {in.q, in.k, in.v, in.i, in.f}) x.requires_grad_(gradients);
  return in;
}

void forward(benchmark::State& state, at::ScalarType dtype) {
  const Inputs in = make_inputs(state.range(0), false, dtype);
  for (auto _ : state) benchmark::DoNotOptimize(mlstm(in.q, in.k, in.v, in.i, in.f));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void forward_backward(benchmark::State& state, at::ScalarType dtype) {
  const Inputs in = make_inputs(state.range(0), true, dtype);
  for (auto _ : state) {
    const Tensor h = std::get<0>(mlstm(in.q, in.k, in.v, in.i, in.f));
    benchmark::DoNotOptimize(torch::autograd::grad({h}, {in.q, in.k, in.v, in.i, in.f}, {h.detach()}));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

/// One token through a state.
void decode(benchmark::State& state, at::ScalarType dtype) {
  const Inputs in = make_inputs(1, false, dtype);
  const at::NoGradGuard no_grad;
  MlstmState memory{at::zeros({1, kH, kK, kV}), at::zeros({1, kH, kK}), at::zeros({1, kH})};
  for (auto _ : state) {
    auto [h, C, n, m] = mlstm(in.q, in.k, in.v, in.i, in.f, {.state = memory});
    memory = {C, n, m};
    benchmark::DoNotOptimize(h);
  }
  state.SetItemsProcessed(state.iterations());
}

void sizes(benchmark::internal::Benchmark* bench) {
  bench->Arg(4096)->Arg(16384)->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK_CAPTURE(forward, float32, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(forward, bfloat16, at::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(forward_backward, float32, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(forward_backward, bfloat16, at::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(decode, float32, at::kFloat)->Unit(benchmark::kMicrosecond)->UseRealTime();

}  // namespace
}  // namespace tamis::ops::mlstm_bench
