#include "tamis/eval/loss_eval.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/terminal.h"
#include "tamis/eval/shared_numbers.h"
#include "tamis/infer/decode.h"
#include "tamis/infer/score.h"

namespace tamis::eval {

LossResult evaluate_loss(const infer::LoadedModel& loaded, std::string_view text, const LossEvalOptions& options,
                         const Progress& progress, distributed::ProcessGroup* group) {
  check_options(options);
  const double start = now_seconds();
  const std::vector<int64_t> ids = loaded.tokenizer->encode(text);
  if (ids.size() < 2) {
    fail(ExitCode::kInput, "loss: the text has {} tokens; expected at least 2, one to read and one to predict",
         ids.size());
  }
  const auto predicted = static_cast<int64_t>(ids.size()) - 1;
  const int64_t wanted = options.window_tokens > 0 ? options.window_tokens : loaded.model->training_length();
  const int64_t window = std::min(wanted, predicted);
  const at::Tensor ids_T = infer::to_tensor(ids).squeeze(0);
  const infer::ScoreOptions score_options{.expand_windows = options.expand_windows,
                                          .chunk_tokens = options.chunk_tokens};

  const auto read_windows = [&](int64_t first, int64_t windows, int64_t length, PositionBins& bins) {
    const auto rows = [&](int64_t shift) {
      return ids_T.narrow(0, first + shift, windows * length).view({windows, length});
    };
    const at::Tensor logprobs_BT = infer::target_logprobs(*loaded.model, rows(0), rows(1), score_options);
    const double* logprobs = logprobs_BT.const_data_ptr<double>();
    for (int64_t i = 0; i < windows * length; ++i) bins.add(i % length, -logprobs[i]);
    if (progress) progress(static_cast<double>(first + windows * length), static_cast<double>(predicted));
  };
  // The sums of windows that are read together, in their order, so that they do not depend on the number of processes.
  std::vector<double> numbers;
  int64_t reads = 0;
  const auto read = [&](int64_t first, int64_t windows, int64_t length) {
    PositionBins bins(window);
    if (group == nullptr || reads++ % group->size() == group->rank()) read_windows(first, windows, length, bins);
    const std::vector<double> of_bins = bins.numbers();
    numbers.insert(numbers.end(), of_bins.begin(), of_bins.end());
  };
  const int64_t whole = predicted / window;
  const int64_t together = std::max<int64_t>(1, options.chunk_tokens / window);
  for (int64_t k = 0; k < whole; k += together) read(k * window, std::min(together, whole - k), window);
  if (const int64_t rest = predicted % window; rest > 0) read(whole * window, 1, rest);
  share_numbers(group, numbers);
  PositionBins bins(window);
  const size_t of_read = bins.numbers().size();
  for (size_t at = 0; at < numbers.size(); at += of_read) bins.add_numbers(std::span(numbers).subspan(at, of_read));

  LossResult result{.window_tokens = window, .tokens = predicted};
  result.bytes = static_cast<int64_t>(text.size() - loaded.tokenizer->decode({ids.data(), 1}).size());
  result.nats_per_token = bins.sum() / static_cast<double>(predicted);
  result.nats_per_byte = bins.sum() / static_cast<double>(result.bytes);
  result.perplexity = std::exp(result.nats_per_token);
  result.by_position = bins.means();
  result.seconds = now_seconds() - start;
  return result;
}

nlohmann::json to_json(const LossResult& result) {
  nlohmann::json json = {{"task", "loss"},
                         {"window_tokens", result.window_tokens},
                         {"tokens", result.tokens},
                         {"bytes", result.bytes},
                         {"nats_per_token", result.nats_per_token},
                         {"nats_per_byte", result.nats_per_byte},
                         {"perplexity", result.perplexity},
                         {"seconds", result.seconds},
                         {"by_position", to_json(result.by_position)}};
  return json;
}

std::string to_table(const LossResult& result) {
  std::string table = fmt::format(
      "loss        {:.4f} nats per token, {:.4f} per byte ({:.4f} bits)\nperplexity  {:.4f}\n"
      "tokens      {} in windows of {}, {}\n\nposition           tokens    loss\n",
      result.nats_per_token, result.nats_per_byte, result.nats_per_byte / std::log(2.0), result.perplexity,
      result.tokens, result.window_tokens, format_duration(result.seconds));
  for (const PositionBin& bin : result.by_position) {
    const std::string positions =
        bin.first == bin.last ? fmt::format("{}", bin.first) : fmt::format("{}-{}", bin.first, bin.last);
    table += fmt::format("{:<14} {:>10} {:>7.4f}\n", positions, bin.tokens, bin.loss);
  }
  return table;
}

}  // namespace tamis::eval
