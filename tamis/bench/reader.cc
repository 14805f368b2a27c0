#include "tamis/bench/reader.h"

#include <ATen/ATen.h>

#include "tamis/base/error.h"
#include "tamis/base/input.h"
#include "tamis/bench/model_inputs.h"
#include "tamis/infer/load.h"
#include "tamis/text/tokenizer.h"

namespace tamis::bench {
namespace {

at::Tensor text_tokens(const text::Tokenizer& tokenizer, const std::filesystem::path& path) {
  const std::vector<int64_t> ids = tokenizer.encode(read_input(path));
  if (ids.empty()) fail(ExitCode::kInput, "{}: is empty; expected a text", input_name(path));
  return at::tensor(ids, at::kLong);
}

std::vector<std::string> windows_of(const ModelBench& bench) {
  if (!bench.windows.empty()) return bench.windows;
  return bench.checkpoint.empty() ? std::vector<std::string>{"initial"}
                                  : std::vector<std::string>{"trained", "expanded"};
}

}  // namespace

std::vector<Reader> Reader::all(const ModelBench& bench) {
  std::vector<Reader> readers;
  if (bench.checkpoint.empty()) {
    for (const std::string& windows : windows_of(bench)) {
      readers.push_back({make_model(bench.psi, bench.vocab, windows), windows, {}});
    }
    return readers;
  }
  infer::LoadedModel loaded = infer::load(bench.checkpoint);
  plain_config(*loaded.model);  // throws before any progress is shown
  const at::Tensor text = bench.text.empty() ? at::Tensor() : text_tokens(*loaded.tokenizer, bench.text);
  const std::shared_ptr<const models::Model> model = std::move(loaded.model);
  for (const std::string& windows : windows_of(bench)) readers.push_back({model, windows, text});
  return readers;
}

at::Tensor Reader::tokens(int64_t B, int64_t T) const {
  if (!text_.defined()) return random_tokens(B, T, model_->vocab_size());
  return text_.index({at::arange(T).remainder(text_.numel())}).expand({B, T});
}

Named Reader::exact(const at::Tensor& tokens_BT) const {
  return added_by_layers(*model_, tokens_BT, exact_hidden(*model_, tokens_BT, expanded()));
}

nlohmann::json model_options(const ModelBench& bench) {
  if (bench.checkpoint.empty()) return {{"psi", bench.psi}, {"vocab", bench.vocab}};
  return {{"checkpoint", bench.checkpoint.string()}, {"text", bench.text.string()}};
}

}  // namespace tamis::bench
