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
#include "tamis/text/tokenizer.h"

namespace tamis::eval {

namespace {

struct Window {
  size_t text = 0;
  int64_t first = 0;   // of the tokens that it reads
  int64_t length = 0;  // it reads and predicts this many
};

using Ids = std::vector<std::vector<int64_t>>;

std::vector<Window> windows_of(const Ids& ids, int64_t length, bool middle) {
  std::vector<Window> windows;
  for (size_t text = 0; text < ids.size(); ++text) {
    const auto predicted = static_cast<int64_t>(ids[text].size()) - 1;
    if (middle) {
      if (predicted >= length) windows.push_back({text, (predicted - length) / 2, length});
      continue;
    }
    for (int64_t first = 0; first < predicted; first += length) {
      windows.push_back({text, first, std::min(length, predicted - first)});
    }
  }
  return windows;
}

/// How many of the first windows are read together: of one length, and with about `tokens` tokens.
size_t read_together(std::span<const Window> windows, int64_t tokens) {
  const int64_t length = windows.front().length;
  const auto most = static_cast<size_t>(std::max<int64_t>(1, tokens / length));
  size_t count = 1;
  while (count < std::min(most, windows.size()) && windows[count].length == length) ++count;
  return count;
}

/// Their tokens, [windows, length], after `shift` tokens.
at::Tensor rows(std::span<const Window> windows, const std::vector<at::Tensor>& ids_T, int64_t shift) {
  std::vector<at::Tensor> rows;
  for (const Window& window : windows)
    rows.push_back(ids_T[window.text].narrow(0, window.first + shift, window.length));
  return at::stack(rows);
}

/// The sums of some windows: by powers of two, and of every position if there are points.
struct Sums {
  Sums(int64_t window, bool points) : bins(window), positions(points ? window : 0), points(points) {}

  void add(int64_t position, double loss) {
    bins.add(position, loss);
    if (points) positions.add(position, loss);
  }

  /// For another process; returns how many `add_numbers` reads.
  size_t append_numbers(std::vector<double>& numbers) const {
    const size_t before = numbers.size();
    for (const std::vector<double>& more : {bins.numbers(), positions.numbers()}) {
      numbers.insert(numbers.end(), more.begin(), more.end());
    }
    return numbers.size() - before;
  }
  void add_numbers(std::span<const double> numbers) {
    bins.add_numbers(numbers);
    positions.add_numbers(numbers.subspan(bins.numbers().size()));
  }

  PositionBins bins;
  PositionLosses positions;
  bool points;
};

/// Of the predicted tokens. A tokenizer may decode a token at the start of a text in another way than within it.
int64_t bytes_of(const text::Tokenizer& tokenizer, std::span<const int64_t> ids, const Window& window) {
  const auto bytes = [&](int64_t tokens) {
    return static_cast<int64_t>(tokenizer.decode(ids.first(static_cast<size_t>(tokens))).size());
  };
  return bytes(window.first + window.length + 1) - bytes(window.first + 1);
}

}  // namespace

LossResult evaluate_loss(const infer::LoadedModel& loaded, std::span<const std::string_view> texts,
                         const LossEvalOptions& options, const Progress& progress, distributed::ProcessGroup* group) {
  check_options(options);
  const double start = now_seconds();
  Ids ids;
  std::vector<at::Tensor> ids_T;
  int64_t longest = 0;  // predicted tokens
  for (const std::string_view text : texts) {
    ids.push_back(loaded.tokenizer->encode(text));
    if (ids.back().size() < 2) {
      fail(ExitCode::kInput, "loss: the text has {} tokens; expected at least 2, one to read and one to predict",
           ids.back().size());
    }
    ids_T.push_back(infer::to_tensor(ids.back()).squeeze(0));
    longest = std::max(longest, static_cast<int64_t>(ids.back().size()) - 1);
  }
  const int64_t wanted = options.window_tokens > 0 ? options.window_tokens : loaded.model->training_length();
  if (options.middle && longest < wanted) {
    fail(ExitCode::kInput,
         "loss: no text has the {} tokens that a window of {} in its middle reads and predicts; the longest has {}",
         wanted + 1, wanted, longest + 1);
  }
  const int64_t length = std::min(wanted, longest);
  const std::vector<Window> windows = windows_of(ids, length, options.middle);
  LossResult result{.window_tokens = length};
  for (const Window& window : windows) result.tokens += window.length;

  const infer::ScoreOptions score_options{.expand_windows = options.expand_windows,
                                          .chunk_tokens = options.chunk_tokens};
  // The sums of windows that are read together, in their order, so that they do not depend on the number of processes.
  std::vector<double> numbers;
  int64_t reads = 0, done = 0;
  size_t of_read = 0;
  for (std::span<const Window> left = windows; !left.empty();) {
    const std::span<const Window> together = left.first(read_together(left, options.chunk_tokens));
    left = left.subspan(together.size());
    const int64_t tokens = static_cast<int64_t>(together.size()) * together.front().length;
    done += tokens;
    Sums sums(length, options.points > 0);
    if (group == nullptr || reads++ % group->size() == group->rank()) {
      const at::Tensor logprobs_BT =
          infer::target_logprobs(*loaded.model, rows(together, ids_T, 0), rows(together, ids_T, 1), score_options);
      const double* logprobs = logprobs_BT.const_data_ptr<double>();
      for (int64_t i = 0; i < tokens; ++i) sums.add(i % together.front().length, -logprobs[i]);
      if (progress) progress(static_cast<double>(done), static_cast<double>(result.tokens));
    }
    of_read = sums.append_numbers(numbers);
  }
  share_numbers(group, numbers);
  Sums all(length, options.points > 0);
  for (size_t at = 0; at < numbers.size(); at += of_read) all.add_numbers(std::span(numbers).subspan(at, of_read));

  result.texts = static_cast<int64_t>(options.middle ? windows.size() : texts.size());
  if (options.middle) {
    for (const Window& window : windows) result.bytes += bytes_of(*loaded.tokenizer, ids[window.text], window);
  } else {  // all tokens but the first of each
    for (size_t text = 0; text < texts.size(); ++text) {
      result.bytes += static_cast<int64_t>(texts[text].size() - loaded.tokenizer->decode({ids[text].data(), 1}).size());
    }
  }
  const double loss = all.bins.sum();
  result.nats_per_token = loss / static_cast<double>(result.tokens);
  result.nats_per_byte = loss / static_cast<double>(result.bytes);
  result.perplexity = std::exp(result.nats_per_token);
  result.by_position = all.bins.means();
  if (options.points > 0) {
    result.points = all.positions.means(options.points, options.smooth * static_cast<double>(length));
  }
  result.seconds = now_seconds() - start;
  return result;
}

LossResult evaluate_loss(const infer::LoadedModel& loaded, std::string_view text, const LossEvalOptions& options,
                         const Progress& progress, distributed::ProcessGroup* group) {
  return evaluate_loss(loaded, {&text, 1}, options, progress, group);
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
                         {"texts", result.texts},
                         {"by_position", to_json(result.by_position)}};
  if (!result.points.empty()) json["points"] = to_json(result.points);
  return json;
}

std::string to_table(const LossResult& result) {
  std::string table = fmt::format(
      "loss        {:.4f} nats per token, {:.4f} per byte ({:.4f} bits)\nperplexity  {:.4f}\n"
      "tokens      {} in windows of {}{}, {}\n\nposition           tokens    loss\n",
      result.nats_per_token, result.nats_per_byte, result.nats_per_byte / std::log(2.0), result.perplexity,
      result.tokens, result.window_tokens, result.texts > 1 ? fmt::format(" of {} texts", result.texts) : "",
      format_duration(result.seconds));
  for (const PositionBin& bin : result.by_position) {
    const std::string positions =
        bin.first == bin.last ? fmt::format("{}", bin.first) : fmt::format("{}-{}", bin.first, bin.last);
    table += fmt::format("{:<14} {:>10} {:>7.4f}\n", positions, bin.tokens, bin.loss);
  }
  return table;
}

}  // namespace tamis::eval
