#include "tamis/eval/abc_digits_eval.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "tamis/base/terminal.h"
#include "tamis/data/abc_digits.h"
#include "tamis/infer/decode.h"

namespace tamis::eval {
namespace {

/// One instance and the cell that it counts for.
struct Question {
  size_t cell;
  data::AbcDigitsInstance instance;
};

/// [B, T] of texts of equal length.
at::Tensor encode(const text::Tokenizer& tokenizer, std::span<const Question> questions) {
  std::vector<at::Tensor> rows;
  for (const Question& question : questions) {
    rows.push_back(infer::to_tensor(tokenizer.encode(question.instance.prompt)));
  }
  return at::cat(rows);
}

struct Answers {
  std::vector<std::string> texts;
  int64_t state_bytes;
};

/// The likeliest continuations, as long as the answer.
Answers answer(const infer::LoadedModel& loaded, std::span<const Question> questions,
               const AbcDigitsEvalOptions& options) {
  const int64_t sequences = static_cast<int64_t>(questions.size());
  infer::Decoder decoder(*loaded.model, sequences, {.expand_windows = options.expand_windows});
  at::Tensor next_B1 = encode(*loaded.tokenizer, questions);
  std::vector<at::Tensor> steps;
  for (int64_t digit = 0; digit < data::kAbcDigitsDigits; ++digit) {
    next_B1 = decoder.logits_after(next_B1, options.chunk_tokens).argmax(-1, /*keepdim=*/true);
    steps.push_back(next_B1.cpu());
  }
  const at::Tensor ids_BS = at::cat(steps, 1).contiguous();
  Answers answers{.texts = {}, .state_bytes = decoder.state_bytes()};
  for (int64_t b = 0; b < sequences; ++b) {
    const int64_t* ids = ids_BS.const_data_ptr<int64_t>() + b * data::kAbcDigitsDigits;
    answers.texts.push_back(loaded.tokenizer->decode({ids, static_cast<size_t>(data::kAbcDigitsDigits)}));
  }
  return answers;
}

double total_tokens(const AbcDigitsEvalOptions& options) {
  double tokens = 0;
  for (const int64_t length : options.lengths) tokens += static_cast<double>(length);
  return tokens * static_cast<double>(options.instances) * static_cast<double>(options.depths.size());
}

}  // namespace

AbcDigitsCell AbcDigitsResult::total(int64_t length) const {
  AbcDigitsCell sum{.length = length};
  for (const AbcDigitsCell& cell : cells) {
    if (cell.length != length) continue;
    sum.prompt_tokens = cell.prompt_tokens;
    sum.correct += cell.correct;
    sum.instances += cell.instances;
  }
  return sum;
}

AbcDigitsResult evaluate_abc_digits(const infer::LoadedModel& loaded, const AbcDigitsEvalOptions& options,
                                    const Progress& progress) {
  check_options(options);
  const double start = now_seconds();
  AbcDigitsResult result{.options = options};
  double done = 0;
  for (const int64_t length : options.lengths) {
    std::vector<Question> questions;
    for (const double depth : options.depths) {
      for (int64_t index = 0; index < options.instances; ++index) {
        questions.push_back({result.cells.size(), data::abc_digits_instance(length, depth, options.seed, index)});
      }
      const auto prompt_tokens = static_cast<int64_t>(questions.back().instance.prompt.size());
      result.cells.push_back(
          {.length = length, .depth = depth, .prompt_tokens = prompt_tokens, .instances = options.instances});
    }
    int64_t batch = 1;
    std::span<const Question> left = questions;
    while (!left.empty()) {
      const auto now = left.first(std::min<size_t>(batch, left.size()));
      const Answers answers = answer(loaded, now, options);
      for (size_t i = 0; i < now.size(); ++i) {
        result.cells[now[i].cell].correct += answers.texts[i] == now[i].instance.answer;
      }
      const int64_t bytes_each = std::max<int64_t>(1, answers.state_bytes / static_cast<int64_t>(now.size()));
      batch = std::clamp<int64_t>(options.state_bytes / bytes_each, 1, options.max_sequences);
      left = left.subspan(now.size());
      done += static_cast<double>(length) * static_cast<double>(now.size());
      if (progress) progress(done, total_tokens(options));
    }
  }
  result.seconds = now_seconds() - start;
  return result;
}

}  // namespace tamis::eval
