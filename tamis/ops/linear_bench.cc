// float32 products of a layer by ATen and by oneDNN, in one process: Y = X W^T, dX = dY W, dW = dY^T X.
// Arguments: rows, E, D.

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include "tamis/ops/bench_memory.h"
#include "tamis/ops/linear.h"
#include "tamis/ops/matmul_backend.h"

namespace tamis::ops {
namespace {

enum class Product { kForward, kInputGradient, kWeightGradient };

void product(benchmark::State& state, Product which, MatmulBackend backend) {
  keep_memory();
  const MatmulBackend before = matmul_backend(at::kFloat);
  set_matmul_backend(at::kFloat, backend);
  const int64_t rows = state.range(0), E = state.range(1), D = state.range(2);
  const at::Tensor x = at::randn({rows, D}), weight = at::randn({E, D}), dy = at::randn({rows, E});
  for (auto _ : state) {
    switch (which) {
      case Product::kForward:
        benchmark::DoNotOptimize(ops::linear(x, weight));
        break;
      case Product::kInputGradient:
        benchmark::DoNotOptimize(linear_input_gradient(dy, weight));
        break;
      case Product::kWeightGradient:
        benchmark::DoNotOptimize(linear_weight_gradient(dy, x));
        break;
    }
  }
  set_matmul_backend(at::kFloat, before);
  state.counters["FLOP/s"] =
      benchmark::Counter(2.0 * static_cast<double>(rows * E * D), benchmark::Counter::kIsIterationInvariantRate);
}

/// The projections of psi 16 and its output, for a chunk and for a long text.
void layer_sizes(benchmark::internal::Benchmark* bench) {
  for (const int64_t rows : {64, 512, 4096}) {
    bench->Args({rows, 2560, 256})->Args({rows, 256, 1024});
  }
  bench->Unit(benchmark::kMillisecond)->UseRealTime();
}

BENCHMARK_CAPTURE(product, forward_aten, Product::kForward, MatmulBackend::kAten)->Apply(layer_sizes);
BENCHMARK_CAPTURE(product, forward_onednn, Product::kForward, MatmulBackend::kOneDnn)->Apply(layer_sizes);
BENCHMARK_CAPTURE(product, dx_aten, Product::kInputGradient, MatmulBackend::kAten)->Apply(layer_sizes);
BENCHMARK_CAPTURE(product, dx_onednn, Product::kInputGradient, MatmulBackend::kOneDnn)->Apply(layer_sizes);
BENCHMARK_CAPTURE(product, dw_aten, Product::kWeightGradient, MatmulBackend::kAten)->Apply(layer_sizes);
BENCHMARK_CAPTURE(product, dw_onednn, Product::kWeightGradient, MatmulBackend::kOneDnn)->Apply(layer_sizes);

}  // namespace
}  // namespace tamis::ops
