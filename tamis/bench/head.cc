// `tamis bench head`: vocabulary head and loss, beside the matrix products that it consists of.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <array>

#include "tamis/bench/bench.h"
#include "tamis/bench/check.h"
#include "tamis/bench/dtypes.h"
#include "tamis/bench/session.h"
#include "tamis/ops/linear.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "tamis/ops/matmul_backend.h"

namespace tamis::bench {
namespace {

using at::Tensor;

struct HeadInputs {
  Tensor x_TD, weight_ND, target_T;

  HeadInputs(const HeadBench& bench, int64_t T, at::ScalarType dtype)
      : x_TD(at::randn({T, bench.hidden}).to(dtype).requires_grad_()),
        weight_ND((at::randn({bench.vocab, bench.hidden}) * 0.05).to(dtype).requires_grad_()),
        target_T(at::randint(bench.vocab, {T}, at::kLong)) {}
};

std::vector<Named> loss_and_gradients(const Tensor& loss, const Tensor& x_TD, const Tensor& weight_ND) {
  const auto gradients = torch::autograd::grad({loss}, {x_TD, weight_ND});
  return {{"the loss", loss.detach()}, {"dx", gradients[0]}, {"dweight", gradients[1]}};
}

double check_head(const HeadBench& bench, at::ScalarType dtype) {
  const HeadInputs in(bench, std::min<int64_t>(bench.tokens, 64), dtype);
  const Tensor x = in.x_TD.detach().to(at::kDouble).requires_grad_();
  const Tensor weight = in.weight_ND.detach().to(at::kDouble).requires_grad_();
  return check("head, " + dtype_name(dtype),
               loss_and_gradients(ops::linear_cross_entropy(in.x_TD, in.weight_ND, in.target_T), in.x_TD, in.weight_ND),
               loss_and_gradients(ops::reference::linear_cross_entropy(x, weight, in.target_T), x, weight),
               operator_tolerance(dtype));
}

/// By at::mm, or by ops::linear's own kernels where the processor has no instructions for this dtype.
Work bare_products(const HeadInputs& in, bool with_gradients) {
  const Tensor x = in.x_TD.detach(), weight = in.weight_ND.detach();
  Tensor logits = at::empty({x.size(0), weight.size(0)}, x.options());
  Tensor dx = at::empty_like(x), dweight = at::empty_like(weight);
  if (ops::matmul_backend(x.scalar_type()) == ops::MatmulBackend::kWidened) {
    return {.run = [=] {
      ops::linear_into(logits, ops::Into::kReplace, x, weight);
      if (!with_gradients) return;
      ops::linear_input_gradient_into(dx, ops::Into::kReplace, logits, weight);
      ops::linear_weight_gradient_into(dweight, ops::Into::kReplace, logits, x);
    }};
  }
  return {.run = [=]() mutable {
    at::mm_out(logits, x, weight.t());
    if (!with_gradients) return;
    at::mm_out(dx, logits, weight);
    at::mm_out(dweight, logits.t(), x);
  }};
}

Work head_and_loss(const HeadInputs& in, bool with_gradients) {
  return {.run = [=] {
    const at::AutoGradMode mode(with_gradients);
    const Tensor loss = ops::linear_cross_entropy(in.x_TD, in.weight_ND, in.target_T);
    if (with_gradients) torch::autograd::grad({loss}, {in.x_TD, in.weight_ND});
  }};
}

/// The bare products and the head, in interleaved calls.
std::vector<Row> measure_head(const HeadBench& bench, at::ScalarType dtype, bool with_gradients, double error) {
  const HeadInputs in(bench, bench.tokens, dtype);
  const std::array works = {bare_products(in, with_gradients), head_and_loss(in, with_gradients)};
  const std::vector<Measurement> times = measure_interleaved(works, bench.measure);
  const std::string what = with_gradients ? "loss and gradients" : "loss only";
  Row row{.what = "bare GEMMs, " + what, .dtype = dtype, .tokens = bench.tokens, .time = times[0]};
  row.tokens_per_call = static_cast<double>(bench.tokens);
  row.flops = (with_gradients ? 3 : 1) * 2.0 * static_cast<double>(bench.tokens * bench.vocab * bench.hidden);
  row.details["gradients"] = with_gradients;
  std::vector<Row> rows = {row, row};
  rows[1].what = what;
  rows[1].time = times[1];
  rows[1].error = error;
  rows[1].ratio = Ratio{times[1].median / times[0].median, "GEMMs"};
  return rows;
}

}  // namespace

Report run(const HeadBench& bench, std::FILE* messages) {
  check_options(bench);
  Session session("head", bench, messages);
  Report& report = session.report();
  report.options = {{"vocab", bench.vocab}, {"hidden", bench.hidden}};
  session.for_each_thread_count([&](int64_t threads) {
    for (const at::ScalarType dtype : session.dtypes()) {
      const double error = check_head(bench, dtype);
      for (const bool with_gradients : {false, true}) {
        session.show(fmt::format("{}, {} threads", dtype_name(dtype), threads));
        for (Row& row : measure_head(bench, dtype, with_gradients, error)) {
          row.threads = threads;
          report.rows.push_back(std::move(row));
        }
      }
    }
  });
  report.notes.push_back("counted: one product of T x D x N for the loss, three with gradients");
  return std::move(report);
}

}  // namespace tamis::bench
