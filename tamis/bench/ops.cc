// `tamis bench ops`: the screening operator alone, beside softmax attention.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "tamis/base/error.h"
#include "tamis/bench/acceptance.h"
#include "tamis/bench/bench.h"
#include "tamis/bench/check.h"
#include "tamis/bench/dtypes.h"
#include "tamis/bench/model_inputs.h"
#include "tamis/bench/session.h"
#include "tamis/ops/screening/screening.h"
#include "tamis/ops/window.h"

namespace tamis::bench {
namespace {

using at::Tensor;

/// Raw projections of one sequence and the gradient of the output, in one dtype.
struct Projections {
  Tensor q, k, v, gate, du;

  Projections(const OpsBench& bench, int64_t T, at::ScalarType dtype) {
    const auto random = [&](int64_t width) { return at::randn({1, T, bench.heads, width}).to(dtype); };
    q = random(bench.key_dim).requires_grad_();
    k = random(bench.key_dim).requires_grad_();
    v = random(bench.value_dim).requires_grad_();
    gate = random(bench.value_dim).requires_grad_();
    du = random(bench.value_dim);
  }
};

/// Learned scalars: windows and acceptance widths.
struct Scalars {
  Tensor s_w, s_r;

  Scalars(const OpsBench& bench, const std::string& windows, double survive)
      : s_w(window_scalars(windows, bench.heads).requires_grad_()) {
    const double r = std::min(acceptance_for(survive, bench.key_dim), 0.999);
    s_r = at::full({bench.heads}, std::log(r / (1 - r)), at::kFloat).requires_grad_();
  }
};

/// The operator or its definition.
Tensor apply(decltype(ops::reference::screening)& screening, const Projections& p, const Scalars& s) {
  return screening(p.q, p.k, p.v, s.s_w, s.s_r, ops::ScreeningOptions{.gate = p.gate});
}

std::vector<Tensor> gradients(const Tensor& out, const Projections& p, const Scalars& s) {
  return torch::autograd::grad({out}, {p.q, p.k, p.v, p.gate, s.s_w, s.s_r}, {p.du.to(out.scalar_type())});
}

/// Compares output and gradients of the operator with its definition on a short sequence.
double check_screening(const OpsBench& bench, const Scalars& scalars, int64_t T, at::ScalarType dtype) {
  const Projections p(bench, T, dtype);
  Projections exact_p = p;
  for (Tensor Projections::*field : {&Projections::q, &Projections::k, &Projections::v, &Projections::gate}) {
    exact_p.*field = (p.*field).detach().to(at::kDouble).requires_grad_();
  }
  const auto outcome = [&](const Tensor& out, const Projections& in) {
    constexpr std::array kNames = {"dq", "dk", "dv", "dgate", "ds_w", "ds_r"};
    std::vector<Named> named = {{"the output", out.detach()}};
    const std::vector<Tensor> all = gradients(out, in, scalars);
    for (size_t i = 0; i < all.size(); ++i) named.push_back({kNames[i], all[i]});
    return named;
  };
  return check("ops, " + dtype_name(dtype), outcome(apply(ops::screening, p, scalars), p),
               outcome(apply(ops::reference::screening, exact_p, scalars), exact_p), operator_tolerance(dtype));
}

/// FLOP of a pass at this accepted share: forward, similarities of all visible keys and values of the accepted ones;
/// backward, for accepted keys only, the gradients of relevance, value, query and key.
double flops_of(const OpsBench& bench, const Scalars& scalars, int64_t T, double accepted, bool backward) {
  const Tensor width = scalars.s_w.detach().to(at::kDouble).exp() + 1;
  double keys = 0;
  for (int64_t h = 0; h < bench.heads; ++h) keys += ops::mean_visible_keys(width[h].item<double>(), T);
  const auto K = static_cast<double>(bench.key_dim), V = static_cast<double>(bench.value_dim);
  const double forward = 2 * K + accepted * 2 * V;
  return keys * static_cast<double>(T) * (forward + (backward ? accepted * 4 * (K + V) : 0));
}

/// Softmax attention of torch with as many heads, causal, queries and keys as wide as values, float32.
Work softmax_attention(const OpsBench& bench, int64_t T, bool backward) {
  const auto random = [&] { return at::randn({1, bench.heads, T, bench.value_dim}).requires_grad_(backward); };
  const Tensor q = random(), k = random(), v = random(), du = at::randn({1, bench.heads, T, bench.value_dim});
  return {.run = [=] {
    const Tensor out = at::scaled_dot_product_attention(q, k, v, {}, 0.0, /*is_causal=*/true);
    if (backward) torch::autograd::grad({out}, {q, k, v}, {du});
  }};
}

/// All rows of one length and pass, in interleaved calls with the peer.
class Contest {
 public:
  Contest(const OpsBench& bench, int64_t T, bool backward, int64_t threads)
      : bench_(bench), T_(T), backward_(backward), threads_(threads) {
    if (!bench.peer) return;
    add({.what = "SDPA", .dtype = at::kFloat}, softmax_attention(bench, T, backward));
  }

  void add_screening(const std::string& windows, double survive, const Projections& p, double error) {
    const Scalars scalars(bench_, windows, survive);
    Row row{.what = fmt::format("{} windows, {:g}% survive", windows, 100 * survive),
            .dtype = p.q.scalar_type(),
            .error = error};
    row.flops = flops_of(bench_, scalars, T_, survive, backward_);
    row.details = {{"windows", windows}, {"survive", survive}};
    add(row, {.run = [this, scalars, p] {
          const at::AutoGradMode mode(backward_);
          const Tensor out = apply(ops::screening, p, scalars);
          if (backward_) gradients(out, p, scalars);
        }});
  }

  std::vector<Row> measured() {
    const std::vector<Measurement> times = measure_interleaved(works_, bench_.measure);
    for (size_t i = 0; i < rows_.size(); ++i) {
      rows_[i].time = times[i];
      if (bench_.peer && i > 0) rows_[i].ratio = Ratio{times[i].median / times[0].median, "SDPA"};
    }
    return std::move(rows_);
  }

 private:
  void add(Row row, Work work) {
    row.what = (backward_ ? "forward + backward, " : "forward, ") + row.what;
    row.threads = threads_;
    row.tokens = T_;
    row.tokens_per_call = static_cast<double>(T_);
    row.details["backward"] = backward_;
    rows_.push_back(std::move(row));
    works_.push_back(std::move(work));
  }

  const OpsBench& bench_;
  int64_t T_;
  bool backward_;
  int64_t threads_;
  std::vector<Row> rows_;
  std::vector<Work> works_;
};

}  // namespace

Report run(const OpsBench& bench, std::FILE* messages) {
  check_options(bench);
  Session session("ops", bench, messages);
  Report& report = session.report();
  report.options = {{"heads", bench.heads}, {"key_dim", bench.key_dim}, {"value_dim", bench.value_dim}};
  session.for_each_thread_count([&](int64_t threads) {
    for (const int64_t length : bench.lengths) {
      std::vector<Projections> inputs;
      for (const at::ScalarType dtype : session.dtypes()) inputs.emplace_back(bench, length, dtype);
      for (const bool backward : {false, true}) {
        Contest contest(bench, length, backward, threads);
        for (const std::string& windows : bench.windows) {
          for (const double survive : bench.survive) {
            for (const Projections& p : inputs) {
              const double error =
                  check_screening(bench, Scalars(bench, windows, survive), check_tokens({length}), p.q.scalar_type());
              contest.add_screening(windows, survive, p, error);
            }
          }
        }
        session.show(
            fmt::format("{} tokens, {}, {} threads", length, backward ? "forward and backward" : "forward", threads));
        for (Row& row : contest.measured()) report.rows.push_back(std::move(row));
      }
    }
  });
  return std::move(report);
}

}  // namespace tamis::bench
