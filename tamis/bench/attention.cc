// `tamis bench attention`: the other operators alone, beside torch's softmax attention.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tamis/bench/bench.h"
#include "tamis/bench/check.h"
#include "tamis/bench/dtypes.h"
#include "tamis/bench/model_inputs.h"
#include "tamis/bench/session.h"
#include "tamis/ops/entmax_attention/entmax_attention.h"
#include "tamis/ops/mlstm/mlstm.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"

namespace tamis::bench {
namespace {

using at::Tensor;
using Inputs = std::vector<Tensor>;

/// An operator with the options of the bench: inputs to result.
using Operator = std::function<Tensor(const Inputs& in)>;

/// An operator to measure, with its definition and its inputs.
struct Candidate {
  std::string what;
  Operator fused, defined;
  std::function<Inputs(int64_t T, at::ScalarType dtype)> inputs;
  double forward_flops = 0, backward_flops = 0;  // per token, at T tokens; 0: depends on the data
};

/// q, k, v from N(0, 1); a shift is added to every logit.
Inputs attention_inputs(const AttentionBench& bench, int64_t T, at::ScalarType dtype) {
  const auto random = [&] { return at::randn({1, T, bench.heads, bench.head_dim}); };
  Inputs in = {random(), random(), random()};
  if (bench.shift != 0) {
    in[0].select(3, 0).fill_(bench.shift * std::sqrt(static_cast<double>(bench.head_dim)));
    in[1].select(3, 0).fill_(1);
  }
  for (Tensor& x : in) x = x.to(dtype);
  return in;
}

/// q, k half as wide as v; gates as in a trained xLSTM: input gates near 1/2, forget gates near 1.
Inputs mlstm_inputs(const AttentionBench& bench, int64_t T, at::ScalarType dtype) {
  const int64_t H = std::max<int64_t>(1, bench.heads / 4), K = bench.head_dim, V = 2 * bench.head_dim;
  Inputs in = {at::randn({1, T, H, K}), at::randn({1, T, H, K}), at::randn({1, T, H, V})};
  for (Tensor& x : in) x = x.to(dtype);
  in.push_back(at::randn({1, T, H}));
  in.push_back(at::randn({1, T, H}) + 4);
  return in;
}

Candidate candidate(const AttentionBench& bench, const std::string& name, int64_t T) {
  const auto pairs = [&](double window) {
    return (window + 1) / 2 * window / static_cast<double>(T) +
           (static_cast<double>(T) - window) * window / static_cast<double>(T);
  };
  const auto width = static_cast<double>(bench.heads * bench.head_dim);
  const auto with_attention_inputs = [&bench](int64_t tokens, at::ScalarType dtype) {
    return attention_inputs(bench, tokens, dtype);
  };
  Candidate result{.what = name, .fused = {}, .defined = {}, .inputs = with_attention_inputs};
  if (name == "softmax" || name == "window") {
    ops::SoftmaxAttentionOptions options;
    if (name == "window") {
      options.window = bench.window;
      result.what = fmt::format("window {}", bench.window);
    }
    result.fused = [=](const Inputs& in) { return ops::softmax_attention(in[0], in[1], in[2], options); };
    result.defined = [=](const Inputs& in) { return ops::reference::softmax_attention(in[0], in[1], in[2], options); };
    const double seen = pairs(name == "window" ? std::min<double>(static_cast<double>(bench.window), T) : T);
    result.forward_flops = seen * 4 * width;
    result.backward_flops = seen * 10 * width;
  } else if (name == "entmax") {
    const ops::EntmaxAttentionOptions options{.alpha = bench.alpha};
    result.what = fmt::format("entmax {:g}", bench.alpha);
    result.fused = [=](const Inputs& in) { return ops::entmax_attention(in[0], in[1], in[2], options); };
    result.defined = [=](const Inputs& in) { return ops::reference::entmax_attention(in[0], in[1], in[2], options); };
  } else if (name == "sieve") {
    const ops::SieveAttentionOptions options{.alpha = bench.alpha};
    result.what = fmt::format("sieve {:g}", bench.alpha);
    result.fused = [=](const Inputs& in) { return ops::sieve_attention(in[0], in[1], in[2], options); };
    result.defined = [=](const Inputs& in) { return ops::reference::sieve_attention(in[0], in[1], in[2], options); };
  } else if (name == "stick_breaking") {
    result.fused = [](const Inputs& in) { return std::get<0>(ops::stick_breaking_attention(in[0], in[1], in[2])); };
    result.defined = [](const Inputs& in) {
      return std::get<0>(ops::reference::stick_breaking_attention(in[0], in[1], in[2]));
    };
    if (bench.shift <= -6) {  // no stick ends early
      result.forward_flops = pairs(static_cast<double>(T)) * 4 * width;
      result.backward_flops = pairs(static_cast<double>(T)) * 10 * width;
    }
  } else {
    result.inputs = [&bench](int64_t tokens, at::ScalarType dtype) { return mlstm_inputs(bench, tokens, dtype); };
    result.fused = [](const Inputs& in) { return std::get<0>(ops::mlstm(in[0], in[1], in[2], in[3], in[4])); };
    result.defined = [](const Inputs& in) {
      return std::get<0>(ops::reference::mlstm_parallel(in[0], in[1], in[2], in[3], in[4]));
    };
  }
  if (bench.shift != 0 && name != "mlstm") result.what += fmt::format(", logits {:+g}", bench.shift);
  return result;
}

Inputs leaves(const Inputs& in) {
  Inputs result;
  for (const Tensor& x : in) result.push_back(x.detach().requires_grad_());
  return result;
}

/// Compares output and gradients of the operator with its definition on a short sequence. Where a key lies at the
/// threshold of Sieve, one of the two may select it and the other not; these inputs have no such key.
double check_candidate(const AttentionBench& bench, const std::string& name, int64_t T, at::ScalarType dtype) {
  const Candidate checked = candidate(bench, name, T);
  const Inputs in = checked.inputs(T, dtype);
  const auto outcome = [&](const Operator& run, at::ScalarType of) {
    Inputs own = leaves(in);
    if (of == at::kDouble) {
      for (Tensor& x : own) x = x.detach().to(of).requires_grad_();
    }
    const Tensor out = run(own);
    at::manual_seed(1);
    const Tensor direction = at::randn(out.sizes()).to(at::kBFloat16).to(out.scalar_type());
    std::vector<Named> named = {{"the output", out.detach()}};
    const Inputs gradients = torch::autograd::grad({out}, own, {direction});
    for (size_t i = 0; i < gradients.size(); ++i) named.push_back({fmt::format("gradient {}", i), gradients[i]});
    return named;
  };
  return check("attention, " + name + ", " + dtype_name(dtype), outcome(checked.fused, dtype),
               outcome(checked.defined, at::kDouble), operator_tolerance(dtype));
}

/// Softmax attention of torch with as many heads, causal, float32.
Work softmax_of_torch(const AttentionBench& bench, int64_t T, bool backward) {
  const auto random = [&] { return at::randn({1, bench.heads, T, bench.head_dim}).requires_grad_(backward); };
  const Tensor q = random(), k = random(), v = random(), du = at::randn({1, bench.heads, T, bench.head_dim});
  return {.run = [=] {
    const Tensor out = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
    if (backward) torch::autograd::grad({out}, {q, k, v}, {du});
  }};
}

/// All rows of one length and pass, in interleaved calls with the peer.
std::vector<Row> contest(const AttentionBench& bench, Session& session, int64_t T, bool backward, int64_t threads,
                         const std::vector<std::vector<double>>& errors) {
  std::vector<Row> rows;
  std::vector<Work> works;
  const auto add = [&](Row row, Work work) {
    row.what = (backward ? "forward + backward, " : "forward, ") + row.what;
    row.threads = threads;
    row.tokens = T;
    row.tokens_per_call = static_cast<double>(T);
    row.details["backward"] = backward;
    rows.push_back(std::move(row));
    works.push_back(std::move(work));
  };
  if (bench.peer) {
    const double T_mean = (static_cast<double>(T) + 1) / 2, width = static_cast<double>(bench.heads * bench.head_dim);
    Row row{.what = "SDPA", .dtype = at::kFloat};
    row.flops = static_cast<double>(T) * T_mean * width * (backward ? 14 : 4);
    add(row, softmax_of_torch(bench, T, backward));
  }
  for (size_t o = 0; o < bench.operators.size(); ++o) {
    const Candidate one = candidate(bench, bench.operators[o], T);
    for (size_t d = 0; d < session.dtypes().size(); ++d) {
      const at::ScalarType dtype = session.dtypes()[d];
      const Inputs in = backward ? leaves(one.inputs(T, dtype)) : one.inputs(T, dtype);
      Row row{.what = one.what, .dtype = dtype, .error = errors[o][d]};
      row.flops = static_cast<double>(T) * (one.forward_flops + (backward ? one.backward_flops : 0));
      row.details["operator"] = bench.operators[o];
      add(row, {.run = [=, run = one.fused] {
            const at::AutoGradMode mode(backward);
            const Tensor out = run(in);
            if (backward) torch::autograd::grad({out}, in, {out.detach()});
          }});
    }
  }
  const std::vector<Measurement> times = measure_interleaved(works, bench.measure);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].time = times[i];
    if (bench.peer && i > 0) rows[i].ratio = Ratio{times[i].median / times[0].median, "SDPA"};
  }
  return rows;
}

}  // namespace

Report run(const AttentionBench& bench, std::FILE* messages) {
  check_options(bench);
  Session session("attention", bench, messages);
  Report& report = session.report();
  report.options = {{"heads", bench.heads},
                    {"head_dim", bench.head_dim},
                    {"window", bench.window},
                    {"alpha", bench.alpha},
                    {"shift", bench.shift}};
  session.for_each_thread_count([&](int64_t threads) {
    for (const int64_t length : bench.lengths) {
      std::vector<std::vector<double>> errors;
      for (const std::string& name : bench.operators) {
        session.show(name + ": the definition in float64");
        errors.emplace_back();
        for (const at::ScalarType dtype : session.dtypes()) {
          errors.back().push_back(check_candidate(bench, name, check_tokens({length}), dtype));
        }
      }
      for (const bool backward : {false, true}) {
        session.show(
            fmt::format("{} tokens, {}, {} threads", length, backward ? "forward and backward" : "forward", threads));
        for (Row& row : contest(bench, session, length, backward, threads, errors)) {
          report.rows.push_back(std::move(row));
        }
      }
    }
  });
  return std::move(report);
}

}  // namespace tamis::bench
