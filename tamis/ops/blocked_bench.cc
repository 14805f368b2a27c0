// The blocked forms beside the fused ones and the definitions, float32, one sequence of 16 heads. Argument: tokens.

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <cmath>

#include "tamis/ops/screening/screening_blocked.h"
#include "tamis/ops/testing.h"

namespace tamis::ops {
namespace {

using at::Tensor;
using testing::Tensors;

constexpr int64_t kHeads = 16;

Tensors random_rows(int64_t T, const std::vector<int64_t>& widths) {
  Tensors rows;
  for (const int64_t width : widths) rows.push_back(testing::random_normal({1, T, kHeads, width}, 80 + rows.size()));
  return rows;
}

/// Times the forward and the backward pass of a function.
void both_passes(benchmark::State& state, const testing::Function& function, Tensors in) {
  for (Tensor& x : in) x.requires_grad_();
  for (auto _ : state) {
    Tensors out = function(in), grad;
    for (const Tensor& x : out) grad.push_back(x.detach());
    benchmark::DoNotOptimize(torch::autograd::grad(out, in, grad));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

// ---- screening, initial windows (2 to 257 tokens) or infinite ones

testing::Function blocked_screening() {
  return testing::differentiable(
      {.forward = [](const Tensors& in) -> Tensors {
         return {screening_blocked(in[0], in[1], in[2], in[3], in[4], {})};
       },
       .backward = [](const Tensors& grad, const Tensors& in) -> Tensors {
         const auto d = screening_backward_blocked(grad[0], in[0], in[1], in[2], in[3], in[4], {});
         return {std::get<0>(d), std::get<1>(d), std::get<2>(d), std::get<3>(d), std::get<4>(d)};
       }});
}

testing::Function fused_screening() {
  return [](const Tensors& in) -> Tensors { return {screening(in[0], in[1], in[2], in[3], in[4])}; };
}

testing::Function defined_screening() {
  return [](const Tensors& in) -> Tensors { return {reference::screening(in[0], in[1], in[2], in[3], in[4])}; };
}

void screening_forms(benchmark::State& state, const testing::Function& form, bool infinite) {
  Tensors in = random_rows(state.range(0), {16, 16, 64});
  in.push_back(infinite ? at::full({kHeads}, 95.0) : at::linspace(0, std::log(256.0), kHeads));
  in.push_back(at::zeros({kHeads}));
  both_passes(state, form, in);
}

void short_and_long(benchmark::internal::Benchmark* bench) {
  bench->Arg(4096)->Arg(16384)->Unit(benchmark::kMillisecond)->UseRealTime();
}
void only_short(benchmark::internal::Benchmark* bench) {  // a definition needs O(T^2) memory
  bench->Arg(2048)->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK_CAPTURE(screening_forms, initial / fused, fused_screening(), false)->Apply(short_and_long);
BENCHMARK_CAPTURE(screening_forms, initial / blocked, blocked_screening(), false)
    ->Apply(only_short)
    ->Apply(short_and_long);
BENCHMARK_CAPTURE(screening_forms, initial / definition, defined_screening(), false)->Apply(only_short);
BENCHMARK_CAPTURE(screening_forms, infinite / fused, fused_screening(), true)->Apply(short_and_long);
BENCHMARK_CAPTURE(screening_forms, infinite / blocked, blocked_screening(), true)
    ->Apply(only_short)
    ->Apply(short_and_long);
BENCHMARK_CAPTURE(screening_forms, infinite / definition, defined_screening(), true)->Apply(only_short);

}  // namespace
}  // namespace tamis::ops
