// `tamis bench decode`: tokens decoded one by one, greedily, after a context of a given depth.

#include "tamis/infer/decode.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "tamis/bench/bench.h"
#include "tamis/bench/check.h"
#include "tamis/bench/dtypes.h"
#include "tamis/bench/model_inputs.h"
#include "tamis/bench/reader.h"
#include "tamis/bench/session.h"

namespace tamis::bench {
namespace {

using at::Tensor;

infer::Decoder make_decoder(const Reader& reader, int64_t sequences, at::ScalarType dtype) {
  const infer::WeightFormat weights = infer::weight_formats().at(dtype_name(dtype));
  return infer::Decoder(reader.model(), sequences, infer::forward_options(weights, reader.expanded()));
}

/// Decodes `count` tokens greedily, beginning with `tokens_B1`.
void continue_greedily(infer::Decoder& decoder, Tensor tokens_B1, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    tokens_B1 = decoder.logits_after(tokens_B1, /*chunk_tokens=*/1).argmax(-1, /*keepdim=*/true);
  }
}

/// Reads the first tokens as one chunk and the last ones one by one; compares with the definition of the whole.
double check_decoding(const Reader& reader, const Tensor& tokens_1T, const Named& exact, at::ScalarType dtype) {
  const int64_t T = tokens_1T.size(1), one_by_one = std::min<int64_t>(32, T - 1);
  infer::Decoder decoder = make_decoder(reader, 1, dtype);
  std::vector<Tensor> parts;
  const auto keep = [&](const Tensor& x_1CD, int64_t) { parts.push_back(x_1CD); };
  decoder.read(tokens_1T.narrow(1, 0, T - one_by_one), T, keep);
  decoder.read(tokens_1T.narrow(1, T - one_by_one, one_by_one), /*chunk_tokens=*/1, keep);
  return check("decode, " + dtype_name(dtype), {added_by_layers(reader.model(), tokens_1T, at::cat(parts, 1))}, {exact},
               model_tolerance(dtype));
}

/// A context: its depth, for a number of sequences.
struct Case {
  Row row;
  infer::Decoder context;
  std::optional<infer::Decoder> decoder = {};  // of the present call
};

Row with_counts(const DecodeBench& bench, const models::Model& model, Row row) {
  const CountedWeights weights = count_weights(model);
  const auto steps = static_cast<double>(bench.tokens);
  row.tokens_per_call = steps * static_cast<double>(row.batch);
  if (row.dtype != at::kChar) row.flops = 2.0 * (weights.layers + weights.head) * row.tokens_per_call;
  row.bytes = steps * (weights.layers + weights.head) * static_cast<double>(at::elementSize(row.dtype));
  return row;
}

/// The contexts of one row of settings. Each is read once: a deeper one continues the one before it.
std::vector<Case> cases_of(const DecodeBench& bench, const Reader& reader, const Row& settings) {
  constexpr int64_t kChunk = 2048;
  std::vector<int64_t> depths = bench.depths;
  std::ranges::sort(depths);
  const int64_t deepest = depths.back();
  std::vector<Case> cases;
  for (const int64_t batch : bench.batches) {
    infer::Decoder context = make_decoder(reader, batch, settings.dtype);
    const Tensor tokens = reader.tokens(batch, deepest);
    int64_t read = 0;
    for (const int64_t depth : depths) {
      if (depth > read) {
        context.read(tokens.narrow(1, read, depth - read), kChunk, [](const Tensor&, int64_t) {});
      }
      read = depth;
      Row row = settings;
      row.tokens = depth;
      row.batch = batch;
      cases.push_back({with_counts(bench, reader.model(), row), context.fork()});
    }
  }
  return cases;
}

/// All depths in interleaved calls, as the cost of a context is the ratio of their times.
void measure_decoding(const DecodeBench& bench, std::vector<Case> cases, std::vector<Row>& rows) {
  std::vector<Work> works;
  for (Case& each : cases) {
    works.push_back({.run =
                         [&] {
                           continue_greedily(*each.decoder, at::zeros({each.row.batch, 1}, at::kLong), bench.tokens);
                         },
                     .prepare = [&] { each.decoder.emplace(each.context.fork()); }});
  }
  const std::vector<Measurement> times = measure_interleaved(works, bench.measure);
  const Row* shallow = nullptr;  // of this batch, the first with a context
  for (size_t i = 0; i < cases.size(); ++i) {
    Row& row = cases[i].row;
    row.time = times[i];
    if (i > 0 && row.batch != cases[i - 1].row.batch) shallow = nullptr;
    if (shallow != nullptr) {
      row.ratio = Ratio{row.time.median / shallow->time.median, fmt::format("depth {}", shallow->tokens)};
    } else if (row.tokens > 0) {
      shallow = &row;
    }
    rows.push_back(row);
  }
}

}  // namespace

Report run(const DecodeBench& bench, std::FILE* messages) {
  check_options(bench);
  const at::NoGradGuard no_grad;
  constexpr int64_t kCheckTokens = 320;  // beyond the longest initial window
  Session session("decode", bench, messages);
  Report& report = session.report();
  report.options = model_options(bench);
  report.options["tokens_of_a_call"] = bench.tokens;
  for (const Reader& reader : Reader::all(bench)) {
    const Tensor tokens = reader.tokens(1, kCheckTokens);
    session.show("the definition in float64");
    const Named exact = reader.exact(tokens);
    session.for_each_thread_count([&](int64_t threads) {
      for (const at::ScalarType dtype : session.dtypes()) {
        const double error = check_decoding(reader, tokens, exact, dtype);
        session.show(fmt::format("{}, {} threads: contexts", dtype_name(dtype), threads));
        std::vector<Case> cases = cases_of(
            bench, reader, {.what = reader.windows() + " windows", .dtype = dtype, .threads = threads, .error = error});
        session.show(fmt::format("{}, {} threads: all depths, interleaved", dtype_name(dtype), threads));
        measure_decoding(bench, std::move(cases), report.rows);
      }
    });
  }
  report.notes.push_back(fmt::format(
      "tokens: depth of the context; a call decodes {} tokens; GB/s: all weights, read once a token", bench.tokens));
  return std::move(report);
}

}  // namespace tamis::bench
