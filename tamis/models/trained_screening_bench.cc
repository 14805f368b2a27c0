// Exact skipping in screening, on the queries and keys of a trained model: what bounds spare and what they cost.
//
//   TAMIS_CHECKPOINT=runs/demo TAMIS_TEXT=long.txt tamis_models_bench --benchmark_filter=trained
//
// Arguments: keys, queries (the last ones; 0: all), 0 without and 1 with bounds, 2 with bounds whatever they cost. Rows
// stand for every head whose window exceeds the training length, made infinite, over the text, repeated if too short,
// read in pieces of 4,096 tokens. Without the two variables there are no rows.

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "tamis/models/checkpoint.h"
#include "tamis/models/model.h"
#include "tamis/models/testing.h"
#include "tamis/ops/screening/screening_cpu.h"
#include "tamis/ops/screening/screening_cpu_testing.h"

namespace tamis::models {
namespace {

using at::Tensor;
using kernels::Skipping;

/// One head's rows, [1, T, 1, *], and scalars.
struct Head {
  std::string name;
  Tensor q, k, v, s_w, s_r;
};

constexpr int64_t kPiece = 4096;  // tokens read at once
constexpr int64_t kMostTokens = 1 << 20;

std::vector<uint8_t> read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Every wide head's projections of the first `tokens` bytes.
std::vector<Head> trained_heads(const std::string& checkpoint, const std::string& text, int64_t tokens) {
  const at::NoGradGuard no_grad;
  const auto model = load_model(resolve_checkpoint(checkpoint));
  const auto bytes = read_bytes(text);
  const auto length = static_cast<double>(model->training_length());
  std::map<std::string, Tensor> parameters;
  for (const Parameter& parameter : model->parameters()) parameters[parameter.name] = parameter.tensor.detach();
  std::map<std::string, std::vector<Tensor>> pieces;
  for (int64_t first = 0; first < tokens; first += kPiece) {
    Tensor ids = at::empty({1, kPiece}, at::kLong);
    for (int64_t i = 0; i < kPiece; ++i) ids[0][i] = bytes[static_cast<size_t>(first + i) % bytes.size()];
    model->hidden(ids, {.expand_windows = true, .observe = [&](const std::string& name, const Tensor& x) {
                          const std::string kind = name.substr(name.rfind('.') + 1);
                          if (kind == "q" || kind == "k" || kind == "v") pieces[name].push_back(x);
                        }});
  }
  std::vector<Head> heads;
  for (int64_t layer = 0;; ++layer) {
    const std::string prefix = "layers." + std::to_string(layer);
    if (!parameters.contains(prefix + ".s_w")) return heads;
    const Tensor s_w = parameters[prefix + ".s_w"], s_r = parameters[prefix + ".s_r"];
    for (int64_t h = 0; h < s_w.size(0); ++h) {
      if (std::exp(s_w[h].item<double>()) + 1 <= length) continue;
      const auto rows = [&](const char* kind) {
        std::vector<Tensor> parts;
        for (const Tensor& piece : pieces[prefix + kind]) parts.push_back(piece.slice(2, h, h + 1));
        return at::cat(parts, 1);
      };
      heads.push_back({std::to_string(layer) + "." + std::to_string(h), rows(".q"), rows(".k"), rows(".v"),
                       at::full({1}, 95.0), s_r.slice(0, h, h + 1)});
    }
  }
}

/// The model named by the environment; read when a row first needs it.
const std::vector<Head>& wide_heads() {
  static const std::vector<Head> heads =
      trained_heads(std::getenv("TAMIS_CHECKPOINT"), std::getenv("TAMIS_TEXT"), kMostTokens);
  return heads;
}

/// Arguments: keys, queries, bounds, and for a single head its number.
void screen(benchmark::State& state, bool single, bool with_gradients) {
  std::vector<Head> heads = wide_heads();
  if (single) {
    const auto number = static_cast<size_t>(state.range(3));
    if (number >= heads.size()) return state.SkipWithError("the model has fewer wide heads");
    heads = {heads[number]};
    state.SetLabel(heads[0].name + fmt::format(" r {:.3f}", heads[0].s_r.sigmoid().item<double>()));
  }
  const at::NoGradGuard no_grad;
  const int64_t keys = state.range(0), queries = state.range(1) == 0 ? keys : state.range(1);
  constexpr Skipping kModes[] = {Skipping::kNever, Skipping::kAdaptive, Skipping::kAlways};
  const Skipping skipping = kModes[state.range(2)];
  kernels::PassCounts skipped;
  for (auto _ : state) {
    skipped = {};
    for (const Head& head : heads) {
      const Tensor q = head.q.slice(1, keys - queries, keys), k = head.k.slice(1, 0, keys),
                   v = head.v.slice(1, 0, keys);
      const Tensor out = ops::screening_cpu(q, k, v, head.s_w, head.s_r, {}, {skipping, &skipped});
      benchmark::DoNotOptimize(out);
      if (!with_gradients) continue;
      const auto gradients = ops::empty_gradients(q, k, v, {});
      benchmark::DoNotOptimize(
          ops::screening_backward_cpu(out, q, k, v, head.s_w, head.s_r, {}, gradients, {}, {skipping, nullptr}));
    }
  }
  state.counters["similarities_%"] = 100 * skipped.similarities / skipped.visible;
  state.counters["bounds_%"] = 100 * skipped.bounds / skipped.visible;
}

const int trained_registered = [] {
  if (std::getenv("TAMIS_CHECKPOINT") == nullptr || std::getenv("TAMIS_TEXT") == nullptr) return 0;
  const auto add = [](const char* name, bool single, bool with_gradients, std::vector<std::vector<int64_t>> sizes) {
    benchmark::RegisterBenchmark(name, screen, single, with_gradients)
        ->ArgsProduct(sizes)
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  };
  add("trained_forward", false, false, {{4096, 16'384, 65'536}, {0}, {0, 1}});
  add("trained_backward", false, true, {{4096, 16'384}, {0}, {0, 1}});
  const auto numbers = benchmark::CreateDenseRange(0, 11, 1);
  add("trained_last", true, false, {{65'536, kMostTokens}, {64, 1088}, {0, 2}, numbers});
  add("trained_head", true, false, {{16'384}, {0}, {0, 1, 2}, numbers});
  return 0;
}();

}  // namespace
}  // namespace tamis::models
