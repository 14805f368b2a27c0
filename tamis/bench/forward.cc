// `tamis bench forward`: a long text through the model at once, without gradients.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "tamis/bench/bench.h"
#include "tamis/bench/check.h"
#include "tamis/bench/dtypes.h"
#include "tamis/bench/model_inputs.h"
#include "tamis/bench/reader.h"
#include "tamis/bench/session.h"

namespace tamis::bench {
namespace {

at::Tensor read(const Reader& reader, const at::Tensor& tokens, at::ScalarType dtype) {
  return reader.model().hidden(tokens, {.compute_dtype = dtype, .expand_windows = reader.expanded()});
}

Row measure_forward(const ForwardBench& bench, const Reader& reader, int64_t length, at::ScalarType dtype) {
  const at::Tensor tokens = reader.tokens(1, length);
  Row row{.dtype = dtype, .tokens = length, .tokens_per_call = static_cast<double>(length)};
  row.flops = 2.0 * count_weights(reader.model()).layers * row.tokens_per_call;
  row.time = measure({.run = [&] { read(reader, tokens, dtype); }}, bench.measure);
  return row;
}

}  // namespace

Report run(const ForwardBench& bench, std::FILE* messages) {
  check_options(bench);
  const at::NoGradGuard no_grad;
  Session session("forward", bench, messages);
  Report& report = session.report();
  report.options = model_options(bench);
  double counted = 0;
  for (const Reader& reader : Reader::all(bench)) {
    counted = count_weights(reader.model()).layers;
    const at::Tensor tokens = reader.tokens(1, check_tokens(bench.lengths));
    session.show("the definition in float64");
    const Named exact = reader.exact(tokens);
    session.for_each_thread_count([&](int64_t threads) {
      for (const at::ScalarType dtype : session.dtypes()) {
        const double error = check("forward, " + dtype_name(dtype),
                                   {added_by_layers(reader.model(), tokens, read(reader, tokens, dtype))}, {exact},
                                   model_tolerance(dtype));
        for (const int64_t length : bench.lengths) {
          session.show(fmt::format("{} tokens, {}, {} threads", length, dtype_name(dtype), threads));
          Row row = measure_forward(bench, reader, length, dtype);
          row.what = reader.windows() + " windows";
          row.threads = threads;
          row.error = error;
          report.rows.push_back(std::move(row));
        }
      }
    });
  }
  report.notes.push_back(
      fmt::format("counted: 2 x {:.2f}M (weights of the layers) FLOP a token, no vocabulary head", counted / 1e6));
  return std::move(report);
}

}  // namespace tamis::bench
