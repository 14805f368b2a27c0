// `tamis bench forward`: a long text through the model at once, without gradients.

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/bench/bench.h"
#include "tamis/bench/check.h"
#include "tamis/bench/dtypes.h"
#include "tamis/bench/model_inputs.h"
#include "tamis/bench/session.h"
#include "tamis/infer/load.h"
#include "tamis/text/tokenizer.h"

namespace tamis::bench {
namespace {

/// A model and what it reads.
class Reader {
 public:
  Reader(const ForwardBench& bench, const std::string& windows) : expanded_(windows == "expanded") {
    if (bench.checkpoint.empty()) {
      model_ = make_model(bench.psi, bench.vocab, windows);
      return;
    }
    infer::LoadedModel loaded = infer::load(bench.checkpoint);
    plain_config(*loaded.model);  // throws before anything is said
    if (!bench.text.empty()) text_ = text_tokens(*loaded.tokenizer, bench.text);
    model_ = std::move(loaded.model);
  }

  const models::Model& model() const { return *model_; }

  /// int64 [1, T]: the beginning of the text, again and again where it is shorter; random without a text.
  at::Tensor tokens(int64_t T) const {
    if (!text_.defined()) return random_tokens(1, T, model_->vocab_size());
    return text_.index({at::arange(T).remainder(text_.numel())}).unsqueeze(0);
  }

  at::Tensor read(const at::Tensor& tokens, at::ScalarType dtype) const {
    return model_->hidden(tokens, {.compute_dtype = dtype, .expand_windows = expanded_});
  }

  Named exact(const at::Tensor& tokens) const {
    return added_by_layers(*model_, tokens, exact_hidden(*model_, tokens, expanded_));
  }

 private:
  static at::Tensor text_tokens(const text::Tokenizer& tokenizer, const std::filesystem::path& path) {
    const std::vector<int64_t> ids = tokenizer.encode(read_file(path));
    if (ids.empty()) fail(ExitCode::kInput, "{}: is empty; expected a text", path.string());
    return at::tensor(ids, at::kLong);
  }

  std::unique_ptr<models::Model> model_;
  at::Tensor text_;
  bool expanded_;
};

Row measure_forward(const ForwardBench& bench, const Reader& reader, int64_t length, at::ScalarType dtype) {
  const at::Tensor tokens = reader.tokens(length);
  Row row{.dtype = dtype, .tokens = length, .tokens_per_call = static_cast<double>(length)};
  row.flops = 2.0 * count_weights(reader.model()).layers * row.tokens_per_call;
  row.time = measure({.run = [&] { reader.read(tokens, dtype); }}, bench.measure);
  return row;
}

std::vector<std::string> windows_of(const ForwardBench& bench) {
  if (!bench.windows.empty()) return bench.windows;
  return bench.checkpoint.empty() ? std::vector<std::string>{"initial"}
                                  : std::vector<std::string>{"trained", "expanded"};
}

}  // namespace

Report run(const ForwardBench& bench, std::FILE* messages) {
  check_options(bench);
  const at::NoGradGuard no_grad;
  Session session("forward", bench, messages);
  Report& report = session.report();
  report.options = {{"psi", bench.psi}, {"vocab", bench.vocab}};
  if (!bench.checkpoint.empty()) {
    report.options = {{"checkpoint", bench.checkpoint.string()}, {"text", bench.text.string()}};
  }
  double counted = 0;
  for (const std::string& windows : windows_of(bench)) {
    const Reader reader(bench, windows);
    counted = count_weights(reader.model()).layers;
    const at::Tensor tokens = reader.tokens(check_tokens(bench.lengths));
    session.show("the definition in float64");
    const Named exact = reader.exact(tokens);
    session.for_each_thread_count([&](int64_t threads) {
      for (const at::ScalarType dtype : session.dtypes()) {
        const double error = check("forward, " + dtype_name(dtype),
                                   {added_by_layers(reader.model(), tokens, reader.read(tokens, dtype))}, {exact},
                                   model_tolerance(dtype));
        for (const int64_t length : bench.lengths) {
          session.show(fmt::format("{} tokens, {}, {} threads", length, dtype_name(dtype), threads));
          Row row = measure_forward(bench, reader, length, dtype);
          row.what = windows + " windows";
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
