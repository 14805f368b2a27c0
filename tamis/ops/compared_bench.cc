// What bench/peers.py compares with peers: screening, the other attentions and mLSTM, the vocabulary head, and what
// they are compared with. Before a case is timed, its outputs and gradients on a short sequence are compared with the
// definition in float64.  A name is SECTION/PASSES/DTYPE/TOKENS/..., so that --benchmark_filter selects cases; the
// label is the name of the row in bench/results. Counters: counted FLOP of a call, the largest relative error against
// the definition, page faults of a call, and the peak memory of the process in the first call.

#include <ATen/ATen.h>
#include <benchmark/benchmark.h>
#include <fmt/format.h>
#include <malloc.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/memory.h"
#include "tamis/bench/check.h"
#include "tamis/bench/dtypes.h"
#include "tamis/bench/measure.h"
#include "tamis/bench/model_inputs.h"
#include "tamis/bench/peaks.h"
#include "tamis/nn/tensor_memory.h"
#include "tamis/ops/entmax_attention/entmax_attention.h"
#include "tamis/ops/linear.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "tamis/ops/matmul_backend.h"
#include "tamis/ops/mlstm/mlstm.h"
#include "tamis/ops/screening/acceptance.h"
#include "tamis/ops/screening/screening.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"
#include "tamis/ops/window.h"
#include "tamis/train/machine.h"

namespace tamis::bench::compared {
namespace {

using at::Tensor;
using Tensors = std::vector<Tensor>;

constexpr int64_t kHeads = 16, kKeyDim = 16, kValueDim = 64, kHeadDim = 64, kWindow = 256;
constexpr std::array kDtypes = {at::kFloat, at::kBFloat16};
constexpr std::array<int64_t, 3> kLengths = {64, 4096, 16384};  // 64: to see whether it works

/// An operator as a function of its inputs, all of which get gradients but the integers.
using Operator = std::function<Tensor(const Tensors& in)>;

struct Case {
  std::string section, what;  // "ops", "initial windows, 2% accepted"
  std::string more;           // of the name, after the tokens: "initial/2%"
  at::ScalarType dtype = at::kFloat;
  int64_t tokens = 0;
  std::function<Tensors(int64_t tokens, at::ScalarType dtype)> inputs;
  Operator fused, defined;                                          // no definition: a peer
  std::function<void(const Tensors& in, bool gradients)> products;  // bare matrix products instead of an operator
  int64_t checked_tokens = 0;                                       // of the short sequence
  double forward_flops = 0, all_flops = 0;                          // of a call; 0: not counted
};

bool has_gradient(const Tensor& x) {
  return at::isFloatingType(x.scalar_type());
}

Tensors leaves(const Tensors& in, std::optional<at::ScalarType> dtype = {}) {
  Tensors result;
  for (const Tensor& x : in) {
    const Tensor own = has_gradient(x) ? x.detach().to(dtype.value_or(x.scalar_type())) : x;
    result.push_back(has_gradient(x) ? own.requires_grad_() : own);
  }
  return result;
}

Tensors with_gradients(const Tensors& in) {
  Tensors result;
  std::copy_if(in.begin(), in.end(), std::back_inserter(result), has_gradient);
  return result;
}

/// The largest relative error of output and gradients; throws where it is not within the tolerance.
double error_of(const Case& c) {
  at::manual_seed(1);
  const Tensors in = c.inputs(c.checked_tokens, c.dtype);
  const auto outcome = [&](const Operator& run, const Tensors& own) {
    const Tensor out = run(own);
    at::manual_seed(2);
    const Tensor direction = at::randn(out.sizes()).to(at::kBFloat16).to(out.scalar_type());
    std::vector<Named> named = {{"the output", out.detach()}};
    const Tensors gradients = torch::autograd::grad({out}, with_gradients(own), {direction});
    for (size_t i = 0; i < gradients.size(); ++i) named.push_back({fmt::format("gradient {}", i), gradients[i]});
    return named;
  };
  return check(fmt::format("{}, {}, {}", c.section, c.what, dtype_name(c.dtype)), outcome(c.fused, leaves(in)),
               outcome(c.defined, leaves(in, at::kDouble)), operator_tolerance(c.dtype));
}

/// A case with one kind of passes, measured in several repetitions.
class Measured {
 public:
  Measured(std::shared_ptr<const Case> c, bool backward) : case_(std::move(c)), backward_(backward) {}

  void operator()(benchmark::State& state) {
    state.SetLabel((backward_ ? "forward and backward" : "forward") + (case_->what.empty() ? "" : ", " + case_->what));
    try {
      prepare();
    } catch (const Error& error) {
      state.SkipWithError(error.what());
      return;
    }
    const int64_t faults = nn::page_faults();
    for (auto _ : state) call();
    const auto calls = static_cast<double>(state.iterations());
    state.SetItemsProcessed(state.iterations() * case_->tokens);
    state.counters["page_faults"] = static_cast<double>(nn::page_faults() - faults) / calls;
    state.counters["flops"] = backward_ ? case_->all_flops : case_->forward_flops;
    state.counters["peak_bytes"] = static_cast<double>(peak_bytes_);
    state.counters["extra_bytes"] = static_cast<double>(extra_bytes_);
    if (error_) state.counters["error"] = *error_;
  }

 private:
  /// The inputs of one case at a time stay in memory: large ones, of which there are many.
  void prepare() {
    static Measured* prepared = nullptr;
    if (prepared == this) return;
    if (prepared != nullptr) prepared->in_.clear();
    if (case_->defined && !error_) error_ = error_of(*case_);
    at::manual_seed(3);
    in_ = case_->inputs(case_->tokens, case_->dtype);
    if (backward_ && case_->fused) in_ = leaves(in_);
    prepared = this;
    if (peak_bytes_ > 0) return;
    trim_memory();
    malloc_trim(0);
    const PeakMemory memory;
    call();
    peak_bytes_ = memory.peak_bytes();
    extra_bytes_ = memory.extra_bytes();
  }

  void call() const {
    if (case_->products) return case_->products(in_, backward_);
    const at::AutoGradMode mode(backward_);
    const Tensor out = case_->fused(in_);
    if (backward_) torch::autograd::grad({out}, with_gradients(in_), {out.detach()});
  }

  std::shared_ptr<const Case> case_;
  bool backward_;
  Tensors in_;
  std::optional<double> error_;
  int64_t peak_bytes_ = 0, extra_bytes_ = 0;
};

void add(Case c) {
  const auto shared = std::make_shared<const Case>(std::move(c));
  for (const bool backward : {false, true}) {
    const std::string name =
        fmt::format("{}/{}/{}/{}/{}", shared->section, backward ? "forward_and_backward" : "forward",
                    dtype_name(shared->dtype), shared->tokens, shared->more);
    const auto measured = std::make_shared<Measured>(shared, backward);
    benchmark::RegisterBenchmark(name.c_str(), [measured](benchmark::State& state) { (*measured)(state); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
}

// ---- screening

/// FLOP of a pass at this accepted share: forward, similarities of all visible keys and values of the accepted ones;
/// backward, for accepted keys only, the gradients of relevance, value, query and key.
std::pair<double, double> screening_flops(const Tensor& s_w, int64_t T, double accepted) {
  const Tensor width = s_w.to(at::kDouble).exp() + 1;
  double keys = 0;
  for (int64_t h = 0; h < kHeads; ++h) keys += ops::mean_visible_keys(width[h].item<double>(), T);
  const double pairs = keys * static_cast<double>(T), forward = pairs * (2 * kKeyDim + accepted * 2 * kValueDim);
  return {forward, forward + pairs * accepted * 4 * (kKeyDim + kValueDim)};
}

Case screening_case(const std::string& windows, double accepted, int64_t T, at::ScalarType dtype) {
  const Tensor s_w = window_scalars(windows, kHeads);
  const double r = std::min(ops::acceptance_for(accepted, kKeyDim), 0.999);
  const Tensor s_r = at::full({kHeads}, std::log(r / (1 - r)), at::kFloat);
  const auto inputs = [=](int64_t tokens, at::ScalarType of) -> Tensors {
    const auto random = [&](int64_t width) { return at::randn({1, tokens, kHeads, width}).to(of); };
    return {random(kKeyDim), random(kKeyDim), random(kValueDim), random(kValueDim), s_w, s_r};
  };
  const auto with = [](decltype(ops::reference::screening)& screening) -> Operator {
    return [&screening](const Tensors& in) {
      return screening(in[0], in[1], in[2], in[4], in[5], ops::ScreeningOptions{.gate = in[3]});
    };
  };
  const auto [forward_flops, all_flops] = screening_flops(s_w, T, accepted);
  return {.section = "ops",
          .what = fmt::format("{} windows, {:g}% accepted", windows, 100 * accepted),
          .more = fmt::format("{}/{:g}%", windows, 100 * accepted),
          .dtype = dtype,
          .tokens = T,
          .inputs = inputs,
          .fused = with(ops::screening),
          .defined = with(ops::reference::screening),
          .checked_tokens = check_tokens({T}),
          .forward_flops = forward_flops,
          .all_flops = all_flops};
}

// ---- attentions and mLSTM

struct Attention {
  std::string name, what;
  Operator fused, defined;
  double shift = 0;     // added to every logit
  int64_t counted = 0;  // keys of a query that are counted; 0: depends on the data
};

std::vector<Attention> attentions() {
  const auto softmax = [](const std::string& what, std::optional<int64_t> window) {
    const ops::SoftmaxAttentionOptions options{.window = window};
    return Attention{
        .name = what,
        .what = window ? fmt::format("{} {}", what, *window) : what,
        .fused = [=](const Tensors& in) { return ops::softmax_attention(in[0], in[1], in[2], options); },
        .defined = [=](const Tensors& in) { return ops::reference::softmax_attention(in[0], in[1], in[2], options); },
        .counted = window.value_or(INT64_MAX)};
  };
  const auto entmax = [](double alpha) {
    const ops::EntmaxAttentionOptions options{.alpha = alpha};
    return Attention{
        .name = fmt::format("entmax_{:g}", alpha),
        .what = fmt::format("entmax {:g}", alpha),
        .fused = [=](const Tensors& in) { return ops::entmax_attention(in[0], in[1], in[2], options); },
        .defined = [=](const Tensors& in) { return ops::reference::entmax_attention(in[0], in[1], in[2], options); }};
  };
  // Where a key lies at the threshold of Sieve, operator and definition may differ in selecting it; these inputs have
  // no such key.
  const auto sieve = [](double alpha) {
    const ops::SieveAttentionOptions options{.alpha = alpha};
    return Attention{
        .name = fmt::format("sieve_{:g}", alpha),
        .what = fmt::format("sieve {:g}", alpha),
        .fused = [=](const Tensors& in) { return ops::sieve_attention(in[0], in[1], in[2], options); },
        .defined = [=](const Tensors& in) { return ops::reference::sieve_attention(in[0], in[1], in[2], options); }};
  };
  const auto stick_breaking = [](double shift) {  // at -8 no stick is used up before the oldest key
    return Attention{
        .name = shift == 0 ? "stick_breaking" : fmt::format("stick_breaking_{:g}", shift),
        .what = shift == 0 ? "stick_breaking" : fmt::format("stick_breaking, logits {:+g}", shift),
        .fused = [](const Tensors& in) { return std::get<0>(ops::stick_breaking_attention(in[0], in[1], in[2])); },
        .defined =
            [](const Tensors& in) {
              return std::get<0>(ops::reference::stick_breaking_attention(in[0], in[1], in[2]));
            },
        .shift = shift,
        .counted = shift <= -6 ? INT64_MAX : 0};
  };
  const auto heads_first = [](const Tensor& x) { return x.transpose(1, 2); };
  const Attention sdpa{.name = "sdpa",
                       .what = "SDPA",
                       .fused =
                           [=](const Tensors& in) {
                             return at::scaled_dot_product_attention(heads_first(in[0]), heads_first(in[1]),
                                                                     heads_first(in[2]), {}, 0.0, /*is_causal=*/true);
                           },
                       .defined = {},
                       .counted = INT64_MAX};
  return {sdpa,        softmax("softmax", {}), softmax("window", kWindow), entmax(1.5),
          entmax(1.1), stick_breaking(0),      stick_breaking(-8),         sieve(1.5),
          sieve(1.1)};
}

/// Query-key pairs of a causal sequence in which a query sees `window` keys at most.
double visible_pairs(int64_t T, int64_t window) {
  const auto w = static_cast<double>(std::min(T, window));
  return w * (w + 1) / 2 + (static_cast<double>(T) - w) * w;
}

Case attention_case(const Attention& attention, int64_t T, at::ScalarType dtype) {
  const auto inputs = [shift = attention.shift](int64_t tokens, at::ScalarType of) {
    const auto random = [&] { return at::randn({1, tokens, kHeads, kHeadDim}); };
    Tensors in = {random(), random(), random()};
    if (shift != 0) {
      in[0].select(3, 0).fill_(shift * std::sqrt(static_cast<double>(kHeadDim)));
      in[1].select(3, 0).fill_(1);
    }
    for (Tensor& x : in) x = x.to(of);
    return in;
  };
  const double products = attention.counted == 0 ? 0 : visible_pairs(T, attention.counted) * kHeads * kHeadDim;
  return {.section = "attention",
          .what = attention.what,
          .more = attention.name,
          .dtype = dtype,
          .tokens = T,
          .inputs = inputs,
          .fused = attention.fused,
          .defined = attention.defined,
          .checked_tokens = check_tokens({T}),
          .forward_flops = 4 * products,
          .all_flops = 14 * products};
}

/// A quarter of the heads, values twice as wide; gates as in a trained xLSTM: input gates near 1/2, forget gates
/// near 1.
Case mlstm_case(int64_t T, at::ScalarType dtype) {
  const auto inputs = [](int64_t tokens, at::ScalarType of) -> Tensors {
    constexpr int64_t H = kHeads / 4;
    const auto random = [&](int64_t width) { return at::randn({1, tokens, H, width}).to(of); };
    return {random(kHeadDim), random(kHeadDim), random(2 * kHeadDim), at::randn({1, tokens, H}),
            at::randn({1, tokens, H}) + 4};
  };
  return {.section = "attention",
          .what = "mlstm",
          .more = "mlstm",
          .dtype = dtype,
          .tokens = T,
          .inputs = inputs,
          .fused = [](const Tensors& in) { return std::get<0>(ops::mlstm(in[0], in[1], in[2], in[3], in[4])); },
          .defined =
              [](const Tensors& in) {
                return std::get<0>(ops::reference::mlstm_parallel(in[0], in[1], in[2], in[3], in[4]));
              },
          .checked_tokens = check_tokens({T})};
}

// ---- vocabulary head

struct HeadSizes {
  int64_t T, N, D;
};

Case head_case(const HeadSizes& sizes, at::ScalarType dtype) {
  const auto [T, N, D] = sizes;
  const auto inputs = [N = N, D = D](int64_t tokens, at::ScalarType of) -> Tensors {
    return {at::randn({tokens, D}).to(of), (at::randn({N, D}) * 0.05).to(of), at::randint(N, {tokens}, at::kLong)};
  };
  const double product = 2 * static_cast<double>(T * N * D);
  return {.section = "head",
          .what = "",
          .more = fmt::format("{}/{}", N, D),
          .dtype = dtype,
          .tokens = T,
          .inputs = inputs,
          .fused = [](const Tensors& in) { return ops::linear_cross_entropy(in[0], in[1], in[2]); },
          .defined = [](const Tensors& in) { return ops::reference::linear_cross_entropy(in[0], in[1], in[2]); },
          .checked_tokens = std::min<int64_t>(T, 64),
          .forward_flops = product,
          .all_flops = 3 * product};
}

/// The matrix products of the head alone: one for the loss, three with gradients. By at::mm, or by ops::linear's own
/// kernels where the processor has no instructions for this dtype.
Case products_case(const HeadSizes& sizes, at::ScalarType dtype) {
  Case c = head_case(sizes, dtype);
  c.what = "bare products";
  c.more += "/products";
  c.fused = c.defined = {};
  c.inputs = [with_target = c.inputs](int64_t tokens, at::ScalarType of) -> Tensors {
    const Tensors in = with_target(tokens, of);
    const Tensor logits = at::empty({in[0].size(0), in[1].size(0)}, in[0].options());
    return {in[0], in[1], logits, at::empty_like(in[0]), at::empty_like(in[1])};
  };
  c.products = [](const Tensors& in, bool gradients) {
    Tensor x = in[0], weight = in[1], logits = in[2], dx = in[3], dweight = in[4];
    if (ops::matmul_backend(x.scalar_type()) == ops::MatmulBackend::kWidened) {
      ops::linear_into(logits, ops::Into::kReplace, x, weight);
      if (!gradients) return;
      ops::linear_input_gradient_into(dx, ops::Into::kReplace, logits, weight);
      ops::linear_weight_gradient_into(dweight, ops::Into::kReplace, logits, x);
      return;
    }
    at::mm_out(logits, x, weight.t());
    if (!gradients) return;
    at::mm_out(dx, logits, weight);
    at::mm_out(dweight, logits.t(), x);
  };
  return c;
}

// ---- all of them

/// The peak rate of matrix products, to which rates of the same process are compared.
void add_peak(at::ScalarType dtype) {
  const auto measure = [dtype](benchmark::State& state) {
    double peak = 0;
    for (auto _ : state) peak = train::measure_matmul_flops(dtype, at::kCPU, /*size=*/2048, /*seconds=*/0.5);
    state.counters["flops_per_second"] = peak;
  };
  benchmark::RegisterBenchmark(("peaks/" + dtype_name(dtype)).c_str(), measure)->Iterations(1)->UseRealTime();
}

bool add_all() {
  nn::keep_tensor_memory();
  for (const at::ScalarType dtype : kDtypes) {
    add_peak(dtype);
    for (const int64_t T : kLengths) {
      for (const char* windows : {"initial", "infinite"}) {
        for (const double accepted : {0.001, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5}) {
          add(screening_case(windows, accepted, T, dtype));
        }
      }
      for (const Attention& attention : attentions()) add(attention_case(attention, T, dtype));
      add(mlstm_case(T, dtype));
    }
    for (const HeadSizes& sizes : {HeadSizes{32, 100, 16}, HeadSizes{2048, 50257, 256}}) {
      add(products_case(sizes, dtype));
      add(head_case(sizes, dtype));
    }
  }
  return true;
}

[[maybe_unused]] const bool kAdded = add_all();

}  // namespace
}  // namespace tamis::bench::compared
