// `tamis bench forward`: a long text through the model at once, without gradients.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "tamis/bench/bench.h"
#include "tamis/bench/check.h"
#include "tamis/bench/dtypes.h"
#include "tamis/bench/model_inputs.h"
#include "tamis/bench/session.h"

namespace tamis::bench {
namespace {

Row measure_forward(const ForwardBench& bench, const models::Model& model, int64_t length, at::ScalarType dtype) {
  const at::Tensor tokens = random_tokens(1, length, bench.vocab);
  Row row{.dtype = dtype, .tokens = length, .tokens_per_call = static_cast<double>(length)};
  row.flops = 2.0 * count_weights(model).layers * row.tokens_per_call;
  row.time = measure({.run = [&] { model.hidden(tokens, {.compute_dtype = dtype}); }}, bench.measure);
  return row;
}

}  // namespace

Report run(const ForwardBench& bench, std::FILE* messages) {
  check_options(bench);
  const at::NoGradGuard no_grad;
  Session session("forward", bench, messages);
  Report& report = session.report();
  report.options = {{"psi", bench.psi}, {"vocab", bench.vocab}};
  for (const std::string& windows : bench.windows) {
    const auto model = make_model(bench.psi, bench.vocab, windows);
    const at::Tensor tokens = random_tokens(1, check_tokens(bench.lengths), bench.vocab);
    session.show("the definition in float64");
    const Named exact = added_by_layers(*model, tokens, exact_hidden(*model, tokens));
    session.for_each_thread_count([&](int64_t threads) {
      for (const at::ScalarType dtype : session.dtypes()) {
        const at::Tensor x = model->hidden(tokens, {.compute_dtype = dtype});
        const double error = check("forward, " + dtype_name(dtype), {added_by_layers(*model, tokens, x)}, {exact},
                                   model_tolerance(dtype));
        for (const int64_t length : bench.lengths) {
          session.show(fmt::format("{} tokens, {}, {} threads", length, dtype_name(dtype), threads));
          Row row = measure_forward(bench, *model, length, dtype);
          row.what = windows + " windows";
          row.threads = threads;
          row.error = error;
          report.rows.push_back(std::move(row));
        }
      }
    });
  }
  report.notes.push_back(fmt::format("counted: 2 x {:.2f}M (weights of the layers) FLOP a token, no vocabulary head",
                                     count_weights(*make_model(bench.psi, bench.vocab)).layers / 1e6));
  return std::move(report);
}

}  // namespace tamis::bench
