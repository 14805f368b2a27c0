// A Psi 16 Multiscreen, vocabulary 512, at its initial windows: what prefill costs compared with the forward pass, what
// one projection GEMM saves compared with four, and what share of a layer is screening. Argument: tokens.

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include "tamis/models/model_config.h"
#include "tamis/models/testing.h"
#include "tamis/nn/tensor_memory.h"
#include "tamis/ops/linear.h"
#include "tamis/ops/screening/screening.h"
#include "tamis/ops/screening/screening_layer.h"

namespace tamis::models {
namespace {

using at::Tensor;

nlohmann::json psi16() {
  return complete_config({{"psi", 16}, {"vocab_size", 512}});
}

Tensor random_rows(at::IntArrayRef sizes, at::ScalarType dtype) {
  return (at::randn(sizes) / 16).to(dtype);
}

/// The whole text at once, without gradients.
void forward(benchmark::State& state, at::ScalarType dtype) {
  const auto model = make_model(psi16(), 1);
  const Tensor tokens = testing::random_tokens(1, state.range(0), 512, 1);
  const at::NoGradGuard no_grad;
  for (auto _ : state) benchmark::DoNotOptimize(model->hidden(tokens, {.compute_dtype = dtype}));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

/// The same text read into a decoding state, in chunks of `range(1)` tokens.
void prefill(benchmark::State& state, at::ScalarType dtype) {
  const auto model = make_model(psi16(), 1);
  const Tensor tokens = testing::random_tokens(1, state.range(0), 512, 1);
  for (auto _ : state) {
    const auto sequence = model->new_state({.compute_dtype = dtype});
    DecodingState* const states[] = {sequence.get()};
    for (const Tensor& chunk : tokens.split(state.range(1), 1)) {
      benchmark::DoNotOptimize(model->decode(chunk.contiguous(), states));
    }
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

/// One token at a time after `range(0)` tokens, by `range(1)` threads.
void decode(benchmark::State& state, const ForwardOptions& options) {
  const auto model = make_model(psi16(), 1);
  const int64_t depth = state.range(0);
  const auto sequence = model->new_state(options);
  DecodingState* const states[] = {sequence.get()};
  for (const Tensor& chunk : testing::random_tokens(1, depth, 512, 1).split(2048, 1)) {
    if (depth > 0) model->decode(chunk.contiguous(), states);
  }
  const Tensor token = testing::random_tokens(1, 1, 512, 2);
  const int threads = at::get_num_threads();
  at::set_num_threads(static_cast<int>(state.range(1)));
  for (auto _ : state) benchmark::DoNotOptimize(model->decode(token, states));
  at::set_num_threads(threads);
  state.SetItemsProcessed(state.iterations());
}

/// q, k, v and gate of a layer by `pieces` GEMMs: one, or four.
void projections(benchmark::State& state, at::ScalarType dtype) {
  const at::NoGradGuard no_grad;
  const Tensor x = random_rows({state.range(0), 256}, dtype);
  const Tensor weight = random_rows({2 * 16 * 16 + 2 * 16 * 64, 256}, dtype);
  const bool fused = state.range(1) == 1;
  const std::vector<Tensor> weights = fused ? std::vector{weight} : weight.split_with_sizes({256, 256, 1024, 1024});
  for (auto _ : state) {
    for (const Tensor& each : weights) benchmark::DoNotOptimize(ops::linear(x, each));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

/// One layer, forward and backward: the whole (range(1) = 0), or its screening alone (1).
void layer(benchmark::State& state, at::ScalarType dtype) {
  const auto config = read_model_config(psi16());
  const int64_t T = state.range(0), H = 16;
  const bool whole = state.range(1) == 0;
  const ops::ProjectionLayout layout = {H, config.key_dim, config.value_dim, config.gate};
  const int64_t projected_width = 2 * (config.key_width() + config.value_width());
  const ops::ScreeningWeights weights = {random_rows({projected_width, 256}, dtype).requires_grad_(),
                                         random_rows({256, config.value_width()}, dtype).requires_grad_(),
                                         at::linspace(0, std::log(256.0), H).requires_grad_(),
                                         at::zeros({H}).requires_grad_()};
  const Tensor x = random_rows({1, T, 256}, at::kFloat).requires_grad_();
  const Tensor projected = random_rows({1, T, projected_width}, dtype);
  for (auto _ : state) {
    if (whole) {
      const Tensor out = x + ops::screening_layer(x.to(dtype), weights, layout);
      benchmark::DoNotOptimize(
          torch::autograd::grad({out}, {x, weights.projection, weights.output, weights.s_w, weights.s_r}, {x}));
    } else {
      const at::NoGradGuard no_grad;
      const ops::ScreeningProjections p = ops::split_projections(projected, layout);
      const Tensor out = ops::screening(p, weights.s_w, weights.s_r), gradient = at::empty_like(projected);
      benchmark::DoNotOptimize(ops::screening_backward_into(out, p, weights.s_w, weights.s_r, {},
                                                            ops::split_projections(gradient, layout), out));
    }
  }
  state.SetItemsProcessed(state.iterations() * T);
}

void add(const char* name, void (*bench)(benchmark::State&, at::ScalarType), std::vector<std::vector<int64_t>> sizes) {
  for (const auto& [dtype_name, dtype] : {std::pair("float32", at::kFloat), std::pair("bfloat16", at::kBFloat16)}) {
    benchmark::RegisterBenchmark((std::string(name) + "/" + dtype_name).c_str(), bench, dtype)
        ->ArgsProduct(sizes)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
}

const int registered = [] {
  nn::keep_tensor_memory();  // as the program does
  add("forward", forward, {{4096}});
  add("prefill", prefill, {{4096}, {256, 2048}});
  const std::pair<const char*, ForwardOptions> formats[] = {
      {"float32", {}}, {"bfloat16", {.compute_dtype = at::kBFloat16}}, {"int8", {.int8_weights = true}}};
  for (const auto& [format, options] : formats) {
    benchmark::RegisterBenchmark((std::string("decode/") + format).c_str(), decode, options)
        ->ArgsProduct({{0, 1024, 16384}, {1, 2}})
        ->Unit(benchmark::kMicrosecond)
        ->UseRealTime();
  }
  add("projections", projections, {{1, 4096}, {1, 4}});
  add("layer", layer, {{4096}, {0, 1}});
  return 0;
}();

}  // namespace
}  // namespace tamis::models
