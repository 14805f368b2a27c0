#include "tamis/eval/loss_eval.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/terminal.h"
#include "tamis/eval/shared_numbers.h"
#include "tamis/infer/decode.h"
#include "tamis/infer/score.h"
#include "tamis/text/tokenizer.h"

namespace tamis::eval {

namespace {

constexpr size_t kEncodedTogether = 64;  // texts, by several threads

/// What is read of a text.
struct Passage {
  at::Tensor ids_T;
  int64_t bytes = 0;  // of its tokens after the first

  int64_t predicted() const { return ids_T.size(0) - 1; }
};

/// The length tokens in the middle of a text, and the token before them, if there are as many. A tokenizer may decode
/// tokens at the start of a text in another way than within it, so bytes are counted from the start.
std::optional<Passage> middle_of(const text::Tokenizer& tokenizer, std::span<const int64_t> ids, int64_t length) {
  if (std::ssize(ids) - 1 < length) return std::nullopt;
  const int64_t first = (std::ssize(ids) - 1 - length) / 2;
  const auto bytes = [&](int64_t tokens) {
    return static_cast<int64_t>(tokenizer.decode(ids.first(static_cast<size_t>(tokens))).size());
  };
  const auto passage = ids.subspan(static_cast<size_t>(first), static_cast<size_t>(length) + 1);
  return Passage{infer::to_tensor(passage).squeeze(0), bytes(first + length + 1) - bytes(first + 1)};
}

/// What is read of all texts, and the length of the windows, which is at most `wanted`.
std::pair<std::vector<Passage>, int64_t> passages_of(const text::Tokenizer& tokenizer,
                                                     std::span<const std::string_view> texts, int64_t wanted,
                                                     bool middle) {
  std::vector<Passage> passages;
  int64_t longest = 0;  // tokens
  for (size_t done = 0; done < texts.size(); done += kEncodedTogether) {
    const auto together = texts.subspan(done, std::min(kEncodedTogether, texts.size() - done));
    const std::vector<std::vector<int64_t>> encoded = tokenizer.encode_batch(together, at::get_num_threads());
    for (size_t i = 0; i < encoded.size(); ++i) {
      const std::vector<int64_t>& ids = encoded[i];
      longest = std::max(longest, std::ssize(ids));
      if (middle) {
        if (auto passage = middle_of(tokenizer, ids, wanted)) passages.push_back(std::move(*passage));
        continue;
      }
      if (ids.size() < 2) {
        fail(ExitCode::kInput, "loss: {} has {} tokens; expected at least 2, one to read and one to predict",
             texts.size() == 1 ? "the text" : fmt::format("text {} of {}", done + i + 1, texts.size()), ids.size());
      }
      const auto first_bytes = tokenizer.decode({ids.data(), 1}).size();
      passages.push_back({infer::to_tensor(ids).squeeze(0), static_cast<int64_t>(together[i].size() - first_bytes)});
    }
  }
  if (passages.empty()) {
    fail(ExitCode::kInput,
         "loss: no text is long enough for a window of {} tokens and the token after it; the longest has {} tokens",
         wanted, longest);
  }
  return {std::move(passages), middle ? wanted : std::min(wanted, longest - 1)};
}

struct Window {
  size_t passage = 0;
  int64_t first = 0;   // index of its first token in the passage
  int64_t length = 0;  // tokens that it reads; it predicts as many
};

std::vector<Window> windows_of(std::span<const Passage> passages, int64_t length) {
  std::vector<Window> windows;
  for (size_t p = 0; p < passages.size(); ++p) {
    for (int64_t first = 0; first < passages[p].predicted(); first += length) {
      windows.push_back({p, first, std::min(length, passages[p].predicted() - first)});
    }
  }
  return windows;
}

/// The first windows that are read together: of one length, and with about `tokens` tokens.
std::span<const Window> read_together(std::span<const Window> windows, int64_t tokens) {
  const int64_t length = windows.front().length;
  const auto most = static_cast<size_t>(std::max<int64_t>(1, tokens / length));
  size_t count = 1;
  while (count < std::min(most, windows.size()) && windows[count].length == length) ++count;
  return windows.first(count);
}

/// The tokens that windows of one length read (shift 0) or predict (shift 1), [windows, length].
at::Tensor rows(std::span<const Window> windows, std::span<const Passage> passages, int64_t shift) {
  std::vector<at::Tensor> rows;
  for (const Window& window : windows) {
    rows.push_back(passages[window.passage].ids_T.narrow(0, window.first + shift, window.length));
  }
  return at::stack(rows);
}

/// The losses of windows: by powers of two, and at every position if points are asked for.
struct Sums {
  Sums(int64_t window, bool points) : bins(window), positions(points ? window : 0) {}

  /// logprobs: of windows of `length` tokens.
  void add(std::span<const double> logprobs, int64_t length) {
    for (int64_t i = 0; i < std::ssize(logprobs); ++i) {
      const double loss = -logprobs[static_cast<size_t>(i)];
      bins.add(i % length, loss);
      if (!positions.empty()) positions.add(i % length, loss);
    }
  }

  /// For another process, whose add_numbers() adds them.
  std::vector<double> numbers() const {
    std::vector<double> numbers = bins.numbers();
    const std::vector<double> more = positions.numbers();
    numbers.insert(numbers.end(), more.begin(), more.end());
    return numbers;
  }
  void add_numbers(std::span<const double> numbers) {
    const size_t of_bins = bins.numbers().size();
    bins.add_numbers(numbers.first(of_bins));
    positions.add_numbers(numbers.subspan(of_bins));
  }

  PositionBins bins;
  PositionLosses positions;
};

/// Reads all windows and adds their losses in a fixed order. With a group each process reads some, and all get all.
Sums read_windows(const models::Model& model, std::span<const Passage> passages, std::span<const Window> windows,
                  int64_t longest, const LossEvalOptions& options, const Progress& progress,
                  distributed::ProcessGroup* group) {
  const infer::ScoreOptions score_options{.expand_windows = options.expand_windows,
                                          .chunk_tokens = options.chunk_tokens};
  const bool points = options.points > 0;
  int64_t total = 0, reads = 0, done = 0;
  for (const Window& window : windows) total += window.length;
  Sums all(longest, points);
  std::vector<double> numbers;  // of all reads
  const size_t of_read = all.numbers().size();
  for (std::span<const Window> left = windows; !left.empty();) {
    const std::span<const Window> together = read_together(left, options.chunk_tokens);
    left = left.subspan(together.size());
    const int64_t length = together.front().length;
    done += std::ssize(together) * length;
    Sums sums(longest, points);
    if (group == nullptr || reads++ % group->size() == group->rank()) {
      const at::Tensor logprobs_BT =
          infer::target_logprobs(model, rows(together, passages, 0), rows(together, passages, 1), score_options);
      sums.add({logprobs_BT.const_data_ptr<double>(), static_cast<size_t>(logprobs_BT.numel())}, length);
      if (progress) progress(static_cast<double>(done), static_cast<double>(total));
    }
    const std::vector<double> more = sums.numbers();
    if (group == nullptr) {
      all.add_numbers(more);
    } else {
      numbers.insert(numbers.end(), more.begin(), more.end());
    }
  }
  share_numbers(group, numbers);
  for (size_t at = 0; at < numbers.size(); at += of_read) all.add_numbers(std::span(numbers).subspan(at, of_read));
  return all;
}

}  // namespace

LossResult evaluate_loss(const infer::LoadedModel& loaded, std::span<const std::string_view> texts,
                         const LossEvalOptions& options, const Progress& progress, distributed::ProcessGroup* group) {
  check_options(options);
  const double start = now_seconds();
  const int64_t wanted = options.window_tokens > 0 ? options.window_tokens : loaded.model->training_length();
  const auto [passages, window] = passages_of(*loaded.tokenizer, texts, wanted, options.middle);
  const std::vector<Window> windows = windows_of(passages, window);
  const Sums sums = read_windows(*loaded.model, passages, windows, window, options, progress, group);

  LossResult result{.options = options, .window_tokens = window, .texts = std::ssize(passages)};
  result.texts_left_out = std::ssize(texts) - result.texts;
  for (const Passage& passage : passages) {
    result.tokens += passage.predicted();
    result.bytes += passage.bytes;
  }
  const double loss = sums.bins.sum();
  result.nats_per_token = loss / static_cast<double>(result.tokens);
  result.nats_per_byte = loss / static_cast<double>(result.bytes);
  result.perplexity = std::exp(result.nats_per_token);
  result.by_position = sums.bins.means();
  if (options.points > 0) {
    result.points = sums.positions.means(options.points, options.smooth * static_cast<double>(window));
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
                         {"texts_left_out", result.texts_left_out},
                         {"middle", result.options.middle},
                         {"by_position", to_json(result.by_position)}};
  if (!result.points.empty()) {
    json["smooth"] = result.options.smooth;
    json["points"] = to_json(result.points);
  }
  return json;
}

std::string to_table(const LossResult& result) {
  std::string texts;
  if (result.options.middle || result.texts > 1) {
    texts = fmt::format("{} {}", result.options.middle ? " in the middle of" : " of", counted(result.texts, "text"));
  }
  if (result.texts_left_out > 0) texts += fmt::format(" ({} left out, which are shorter)", result.texts_left_out);
  std::string table = fmt::format(
      "loss        {:.4f} nats per token, {:.4f} per byte ({:.4f} bits)\nperplexity  {:.4f}\n"
      "tokens      {} in windows of {}{}, {}\n\nposition           tokens    loss\n",
      result.nats_per_token, result.nats_per_byte, result.nats_per_byte / std::log(2.0), result.perplexity,
      result.tokens, result.window_tokens, texts, format_duration(result.seconds));
  for (const PositionBin& bin : result.by_position) {
    const std::string positions =
        bin.first == bin.last ? fmt::format("{}", bin.first) : fmt::format("{}-{}", bin.first, bin.last);
    table += fmt::format("{:<14} {:>10} {:>7.4f}\n", positions, bin.tokens, bin.loss);
  }
  return table;
}

}  // namespace tamis::eval
