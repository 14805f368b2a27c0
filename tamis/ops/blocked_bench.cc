// The blocked forms compared with the fused ones, the definitions and peers in plain torch: float32, one sequence of 16
// heads, forward and backward. Argument: tokens. A definition needs O(T^2) memory and runs on fewer tokens.

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "tamis/ops/entmax_attention/entmax_attention.h"
#include "tamis/ops/mlstm/mlstm_blocked.h"
#include "tamis/ops/screening/screening_blocked.h"
#include "tamis/ops/selection/selection.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention_blocked.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention_blocked.h"
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

void both_passes(benchmark::State& state, const testing::Function& function, Tensors in) {
  for (Tensor& x : in) x.requires_grad_();
  for (auto _ : state) {
    Tensors out = function(in), grad;
    for (const Tensor& x : out) grad.push_back(x.detach());
    benchmark::DoNotOptimize(torch::autograd::grad(out, in, grad));
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}

void short_and_long(benchmark::internal::Benchmark* bench) {
  bench->Arg(2048)->Arg(4096)->Arg(16384)->Unit(benchmark::kMillisecond)->UseRealTime();
}
void only_short(benchmark::internal::Benchmark* bench) {
  bench->Arg(2048)->Unit(benchmark::kMillisecond)->UseRealTime();
}

// ---- screening

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

/// `banded` of bench/peers/screening.py, operation by operation: recorded by autograd, eager.
Tensor banded_peer(const Tensors& in) {
  constexpr double kPi = std::numbers::pi, kThreshold = 256;
  const Tensor &s_w = in[3], width = s_w.exp() + 1, inverse_r = 1 + at::exp(-in[4]);
  const Tensor phi = at::where(width < kThreshold, (at::cos(kPi * width / kThreshold) + 1) / 2, 0.0);
  const Tensor step = kPi * phi / width;
  const int64_t T = in[0].size(1);
  const auto unit = [](const Tensor& x) { return x / x.norm(2, {-1}, true).clamp_min(1e-12); };
  const auto rotated = [&](const Tensor& x) {
    const Tensor angle = at::arange(T, at::kFloat).unsqueeze(1) * step, cos = angle.cos(), sin = angle.sin();
    const Tensor x0 = x.select(-1, 0), x1 = x.select(-1, 1);
    return at::cat({at::stack({x0 * cos - x1 * sin, x0 * sin + x1 * cos}, -1), x.slice(-1, 2)}, -1);
  };
  const Tensor q = rotated(unit(in[0])).transpose(1, 2), k = rotated(unit(in[1])).transpose(1, 2);
  const Tensor v = unit(in[2]).transpose(1, 2);
  struct Band {
    int64_t first, last, block, before;
  };
  std::vector<Band> plan;
  for (int64_t h = 0; h < kHeads; ++h) {
    const auto reach = static_cast<int64_t>(std::ceil(width[h].item<double>()));
    const int64_t block = reach >= 64 ? 64 : 16, before = (reach - 1 + block - 1) / block;
    if (!plan.empty() && plan.back().block == block && plan.back().before == before) {
      plan.back().last = h + 1;
    } else {
      plan.push_back({h, h + 1, block, before});
    }
  }
  Tensors out;
  for (const Band& band : plan) {
    const auto blocks = [&](const Tensor& x, int64_t before) {
      const Tensor whole = x.view({x.size(0), x.size(1), -1, band.block, x.size(3)});
      Tensors parts;
      for (int64_t back = before; back > 0; --back) {
        parts.push_back(at::constant_pad_nd(whole, {0, 0, 0, 0, back, 0}).slice(2, 0, whole.size(2)));
      }
      parts.push_back(whole);
      return at::cat(parts, 3);
    };
    const auto padded = [&](const Tensor& x) {
      const int64_t rest = (band.block - T % band.block) % band.block;
      return at::constant_pad_nd(x.slice(1, band.first, band.last), {0, 0, 0, rest});
    };
    const auto of_heads = [&](const Tensor& x) { return x.slice(0, band.first, band.last).view({-1, 1, 1, 1}); };
    const Tensor qs = padded(q), ks = padded(k), vs = padded(v), w = of_heads(width);
    const Tensor distance =
        at::arange(band.block, at::kFloat).unsqueeze(1) - at::arange(-band.before * band.block, band.block, at::kFloat);
    const Tensor s = at::matmul(blocks(qs, 0), blocks(ks, band.before).transpose(-1, -2));
    const Tensor trim = at::relu(1 - (1 - s) * of_heads(inverse_r)).square();
    const Tensor inside = (distance >= 0).logical_and(distance < w);
    const Tensor mask = at::where(inside, (at::cos(kPi * distance / w) + 1) / 2, 0.0);
    out.push_back(at::matmul(trim * mask, blocks(vs, band.before)).flatten(2, 3).slice(2, 0, T));
  }
  const Tensor h = at::cat(out, 1), norm = h.square().sum(-1, true).clamp_min(1e-24).sqrt();
  return (h * (norm.tanh() / norm)).transpose(1, 2);
}

testing::Function banded_screening() {
  return [](const Tensors& in) -> Tensors { return {banded_peer(in)}; };
}

void screening_forms(benchmark::State& state, const testing::Function& form, bool infinite) {
  Tensors in = random_rows(state.range(0), {16, 16, 64});
  in.push_back(infinite ? at::full({kHeads}, 95.0) : at::linspace(0, std::log(256.0), kHeads));
  in.push_back(at::zeros({kHeads}));
  if (!infinite) {  // a peer that computes something else is no peer
    const Tensors few = {in[0].slice(1, 0, 200), in[1].slice(1, 0, 200), in[2].slice(1, 0, 200), in[3], in[4]};
    if (testing::largest(form(few)[0] - screening(few[0], few[1], few[2], few[3], few[4])) > 1e-4) {
      return state.SkipWithError("differs from screening");
    }
  }
  both_passes(state, form, in);
}

BENCHMARK_CAPTURE(screening_forms, initial / fused, fused_screening(), false)->Apply(short_and_long);
BENCHMARK_CAPTURE(screening_forms, initial / blocked, blocked_screening(), false)->Apply(short_and_long);
BENCHMARK_CAPTURE(screening_forms, initial / banded_peer, banded_screening(), false)->Apply(short_and_long);
BENCHMARK_CAPTURE(screening_forms, initial / definition, defined_screening(), false)->Apply(only_short);
BENCHMARK_CAPTURE(screening_forms, infinite / fused, fused_screening(), true)->Apply(short_and_long);
BENCHMARK_CAPTURE(screening_forms, infinite / blocked, blocked_screening(), true)->Apply(short_and_long);
BENCHMARK_CAPTURE(screening_forms, infinite / definition, defined_screening(), true)->Apply(only_short);

// ---- attentions of q, k and v, 64 wide; scores are standard normal

struct AttentionForms {
  testing::Function fused, blocked, defined;
};

/// From the functions fused(q, k, v), blocked(q, k, v), backward(grad, q, k, v), defined(q, k, v), each of which
/// returns one tensor or, the second, a tuple of three.
template <typename Fused, typename Blocked, typename Backward, typename Defined>
AttentionForms forms(const Fused& fused, const Blocked& blocked, const Backward& backward, const Defined& defined) {
  return {
      [=](const Tensors& in) -> Tensors { return {fused(in[0], in[1], in[2])}; },
      testing::differentiable({.forward = [=](const Tensors& in) -> Tensors { return {blocked(in[0], in[1], in[2])}; },
                               .backward = [=](const Tensors& grad, const Tensors& in) -> Tensors {
                                 const auto d = backward(grad[0], in[0], in[1], in[2]);
                                 return {std::get<0>(d), std::get<1>(d), std::get<2>(d)};
                               }}),
      [=](const Tensors& in) -> Tensors { return {defined(in[0], in[1], in[2])}; }};
}

AttentionForms softmax_forms(std::optional<int64_t> window) {
  const ScaledAttentionOptions options{.scale = 0.125, .window = window};
  return forms([=](const auto&... x) { return softmax_attention(x..., {.window = window}); },
               [=](const auto&... x) { return softmax_attention_blocked(x..., options); },
               [=](const auto&... x) { return softmax_attention_backward_blocked(x..., options); },
               [=](const auto&... x) { return reference::softmax_attention(x..., {.window = window}); });
}

AttentionForms entmax_forms() {
  const Selection selection{.scale = 0.125};
  return forms([](const auto&... x) { return entmax_attention(x...); },
               [=](const auto&... x) { return selection_blocked(entmax_weights(), selection, x...); },
               [=](const auto&... x) { return selection_backward_blocked(entmax_weights(), selection, x...); },
               [](const auto&... x) { return reference::entmax_attention(x...); });
}

AttentionForms sieve_forms() {
  const Selection selection{.scale = 0.125, .strict = true};
  return forms([](const auto&... x) { return sieve_attention(x...); },
               [=](const auto&... x) { return selection_blocked(sieve_weights(), selection, x...); },
               [=](const auto&... x) { return selection_backward_blocked(sieve_weights(), selection, x...); },
               [](const auto&... x) { return reference::sieve_attention(x...); });
}

AttentionForms stick_breaking_forms() {
  return forms([](const auto&... x) { return std::get<0>(stick_breaking_attention(x...)); },
               [](const auto&... x) { return std::get<0>(stick_breaking_attention_blocked(x..., {})); },
               [](const Tensor& grad, const auto&... x) {
                 const Tensor dr = at::zeros({grad.size(0), grad.size(1), grad.size(2)});
                 return stick_breaking_attention_backward_blocked(grad, dr, x..., {});
               },
               [](const auto&... x) { return std::get<0>(reference::stick_breaking_attention(x...)); });
}

void attention_forms(benchmark::State& state, const testing::Function& form) {
  both_passes(state, form, random_rows(state.range(0), {64, 64, 64}));
}

BENCHMARK_CAPTURE(attention_forms, softmax / fused, softmax_forms({}).fused)->Apply(short_and_long);
BENCHMARK_CAPTURE(attention_forms, softmax / blocked, softmax_forms({}).blocked)->Apply(short_and_long);
BENCHMARK_CAPTURE(attention_forms, softmax / definition, softmax_forms({}).defined)->Apply(only_short);
BENCHMARK_CAPTURE(attention_forms, window_256 / fused, softmax_forms(256).fused)->Apply(short_and_long);
BENCHMARK_CAPTURE(attention_forms, window_256 / blocked, softmax_forms(256).blocked)->Apply(short_and_long);
BENCHMARK_CAPTURE(attention_forms, entmax / fused, entmax_forms().fused)->Apply(short_and_long);
BENCHMARK_CAPTURE(attention_forms, entmax / blocked, entmax_forms().blocked)->Apply(short_and_long);
BENCHMARK_CAPTURE(attention_forms, entmax / definition, entmax_forms().defined)->Apply(only_short);
BENCHMARK_CAPTURE(attention_forms, sieve / fused, sieve_forms().fused)->Apply(short_and_long);
BENCHMARK_CAPTURE(attention_forms, sieve / blocked, sieve_forms().blocked)->Apply(short_and_long);
BENCHMARK_CAPTURE(attention_forms, sieve / definition, sieve_forms().defined)->Apply(only_short);
BENCHMARK_CAPTURE(attention_forms, sticks / fused, stick_breaking_forms().fused)->Apply(short_and_long);
BENCHMARK_CAPTURE(attention_forms, sticks / blocked, stick_breaking_forms().blocked)->Apply(short_and_long);
BENCHMARK_CAPTURE(attention_forms, sticks / definition, stick_breaking_forms().defined)->Apply(only_short);

/// One query and a cache of keys and values, whose heads lie one after the other, without gradients.
void softmax_token(benchmark::State& state, const testing::Function& form) {
  const auto cache = [&](uint64_t seed) {
    return testing::random_normal({1, kHeads, state.range(0), 64}, seed).transpose(1, 2);
  };
  const Tensors in = {testing::random_normal({1, 1, kHeads, 64}, 83), cache(84), cache(85)};
  for (auto _ : state) benchmark::DoNotOptimize(form(in));
  state.SetBytesProcessed(state.iterations() * state.range(0) * kHeads * 2 * 64 * 4);
}

BENCHMARK_CAPTURE(softmax_token, fused, softmax_forms({}).fused)->Apply(short_and_long);
BENCHMARK_CAPTURE(softmax_token, blocked, softmax_forms({}).blocked)->Apply(short_and_long);

// ---- mLSTM, K 64, V 128

testing::Function blocked_mlstm_h() {
  return testing::differentiable({.forward = [](const Tensors& in) -> Tensors {
                                    return {std::get<0>(mlstm_blocked(in[0], in[1], in[2], in[3], in[4], {}))};
                                  },
                                  .backward = [](const Tensors& grad, const Tensors& in) -> Tensors {
                                    const auto d = mlstm_backward_blocked({.h = grad[0], .C = {}, .n = {}, .m = {}},
                                                                          in[0], in[1], in[2], in[3], in[4], {});
                                    return {d.begin(), d.begin() + 5};
                                  }});
}

void mlstm_forms(benchmark::State& state, const testing::Function& form) {
  Tensors in = random_rows(state.range(0), {64, 64, 128, 1, 1});
  for (const size_t gate : {3, 4}) in[gate] = in[gate].squeeze(3);
  in[4] += 3;
  both_passes(state, form, in);
}

BENCHMARK_CAPTURE(mlstm_forms, fused, [](const Tensors& in) -> Tensors {
  return {std::get<0>(mlstm(in[0], in[1], in[2], in[3], in[4]))};
})->Apply(short_and_long);
BENCHMARK_CAPTURE(mlstm_forms, blocked, blocked_mlstm_h())->Apply(short_and_long);
BENCHMARK_CAPTURE(mlstm_forms, definition, [](const Tensors& in) -> Tensors {
  return {std::get<0>(reference::mlstm_parallel(in[0], in[1], in[2], in[3], in[4]))};
})->Apply(only_short);

}  // namespace
}  // namespace tamis::ops
