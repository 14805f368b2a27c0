#include "tamis/eval/task_eval.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <span>

#include "tamis/base/error.h"
#include "tamis/base/terminal.h"
#include "tamis/data/instance_memory.h"
#include "tamis/data/registry.h"
#include "tamis/eval/shared_numbers.h"
#include "tamis/infer/decode.h"

namespace tamis::eval {
namespace {

/// One instance and the cell that it belongs to.
struct Question {
  size_t cell;
  int64_t index;  // in the cell
  data::Instance instance;
  int64_t tokens;  // of the prompt
};

/// What was measured of one instance; all 0 in processes that did not measure it.
struct Measured {
  double correct = 0, score = 0, needle = 0, needle_best = 0;
};
static_assert(sizeof(Measured) == 4 * sizeof(double));  // processes exchange it as numbers

/// Attention of the prompt's last token on the answer span, of every head.
at::Tensor needle_score(const infer::LoadedModel& loaded, const TaskEvalOptions& options,
                        const data::TextInstance& instance) {
  if (instance.answer_spans.size() != 1) {
    fail(ExitCode::kUsage,
         "{}: its prompts have {} answers; only texts with one have a needle score, such as needle and passkey",
         options.task, instance.answer_spans.size());
  }
  const auto tokens_of = [&](int64_t bytes) { return loaded.tokenizer->encode(instance.prompt.substr(0, bytes)); };
  const auto first = static_cast<int64_t>(tokens_of(instance.answer_spans[0].begin).size());
  const auto last = static_cast<int64_t>(tokens_of(instance.answer_spans[0].end).size());
  const at::Tensor tokens_1T = infer::to_tensor(loaded.tokenizer->encode(instance.prompt));
  return loaded.model->attention_mass(tokens_1T.to(infer::device_of(*loaded.model)), first, last,
                                      {.expand_windows = options.expand_windows});
}

struct BatchScores {
  std::vector<double> scores;
  std::vector<bool> first_right;  // of texts: whether the first character of the answer is said first
  int64_t state_bytes;
};

std::vector<int64_t> ids_of(const infer::LoadedModel& loaded, const data::Instance& instance) {
  if (const auto* tokens = std::get_if<data::TokenInstance>(&instance)) return tokens->ids;
  return loaded.tokenizer->encode(std::get<data::TextInstance>(instance).prompt);
}

/// Prompts with the same number of tokens as a tensor [B, T].
at::Tensor prompts_of(const infer::LoadedModel& loaded, std::span<const Question> questions) {
  std::vector<at::Tensor> rows;
  for (const Question& question : questions) rows.push_back(infer::to_tensor(ids_of(loaded, question.instance)));
  return at::cat(rows);
}

infer::Decoder decoder_for(const infer::LoadedModel& loaded, std::span<const Question> questions,
                           const TaskEvalOptions& options) {
  return {*loaded.model, static_cast<int64_t>(questions.size()), {.expand_windows = options.expand_windows}};
}

/// The text of the ids before the first end-of-text token, cut to `most_bytes` bytes.
std::string text_of(const text::Tokenizer& tokenizer, std::span<const int64_t> ids, int64_t most_bytes) {
  const auto end = std::find(ids.begin(), ids.end(), tokenizer.end_of_text());
  return tokenizer.decode(ids.first(end - ids.begin())).substr(0, most_bytes);
}

bool begins_right(std::string_view said, std::string_view answer) {
  said.remove_prefix(std::min(said.find_first_not_of(' '), said.size()));
  return !said.empty() && !answer.empty() && said[0] == answer[0];
}

/// Scores greedy continuations. Every token has at least one byte, so as many tokens as answer bytes suffice.
BatchScores score_batch(const data::TextTask& task, const infer::LoadedModel& loaded,
                        std::span<const Question> questions, const TaskEvalOptions& options) {
  int64_t most = 0;
  for (const Question& question : questions) {
    most = std::max(most, data::said_bytes(task, std::get<data::TextInstance>(question.instance)));
  }
  infer::Decoder decoder = decoder_for(loaded, questions, options);
  at::Tensor next_B1 = prompts_of(loaded, questions);
  decoder.reserve(next_B1.size(1) + most);
  std::vector<at::Tensor> steps;
  for (int64_t step = 0; step < most; ++step) {
    const at::Tensor logits_BN = decoder.logits_after(next_B1, options.chunk_tokens);
    if (const int64_t end = loaded.tokenizer->end_of_text(); options.skip_end_of_text && end >= 0) {
      logits_BN.select(-1, end).fill_(-INFINITY);
    }
    next_B1 = logits_BN.argmax(-1, /*keepdim=*/true);
    steps.push_back(next_B1);
  }
  const at::Tensor ids_BS = at::cat(steps, 1).cpu().contiguous();
  BatchScores result{.scores = {}, .first_right = {}, .state_bytes = decoder.state_bytes()};
  for (size_t b = 0; b < questions.size(); ++b) {
    const std::span<const int64_t> ids(ids_BS[static_cast<int64_t>(b)].const_data_ptr<int64_t>(), steps.size());
    const std::string said = text_of(*loaded.tokenizer, ids, most);
    const auto& answers = std::get<data::TextInstance>(questions[b].instance).answers;
    result.scores.push_back(task.score(said, answers));
    result.first_right.push_back(begins_right(said, answers[0]));
  }
  return result;
}

/// The answers due in one chunk: for each, the row of its x in [B * C, D], the index of its question, and the right id.
struct Due {
  std::vector<int64_t> rows;
  std::vector<size_t> question;
  std::vector<int64_t> answers;
};

Due due_in(std::span<const Question> questions, int64_t first, int64_t tokens) {
  Due due;
  for (size_t b = 0; b < questions.size(); ++b) {
    const auto& instance = std::get<data::TokenInstance>(questions[b].instance);
    for (size_t i = 0; i < instance.answers.size(); ++i) {
      const int64_t place = instance.answer_positions[i] - first;
      if (place < 0 || place >= tokens) continue;
      due.rows.push_back(static_cast<int64_t>(b) * tokens + place);
      due.question.push_back(b);
      due.answers.push_back(instance.answers[i]);
    }
  }
  return due;
}

BatchScores score_batch(const data::TokenTask&, const infer::LoadedModel& loaded, std::span<const Question> questions,
                        const TaskEvalOptions& options) {
  infer::Decoder decoder = decoder_for(loaded, questions, options);
  std::vector<int64_t> right(questions.size());
  decoder.read(prompts_of(loaded, questions), options.chunk_tokens, [&](const at::Tensor& x_BCD, int64_t first) {
    const Due due = due_in(questions, first, x_BCD.size(1));
    if (due.rows.empty()) return;
    const at::Tensor rows = infer::to_tensor(due.rows).squeeze(0).to(x_BCD.device());
    const at::Tensor said = decoder.logits(x_BCD.flatten(0, 1).index_select(0, rows)).argmax(-1).cpu();
    for (size_t i = 0; i < due.answers.size(); ++i) {
      right[due.question[i]] += said.const_data_ptr<int64_t>()[i] == due.answers[i];
    }
  });
  BatchScores result{.scores = {}, .first_right = {}, .state_bytes = decoder.state_bytes()};
  for (size_t b = 0; b < questions.size(); ++b) {
    const auto asked = static_cast<double>(std::get<data::TokenInstance>(questions[b].instance).answers.size());
    result.scores.push_back(static_cast<double>(right[b]) / asked);
  }
  return result;
}

void check_vocabulary(const data::Task& task, const TaskEvalOptions& options, const models::Model& model) {
  const int64_t vocab = data::vocab_size(task, options.settings);
  if (vocab <= model.vocab_size() || std::holds_alternative<data::TextTask>(task.kind)) return;
  fail(ExitCode::kUsage, "{}: its {} ids are more than the model's vocabulary of {}; give --vocab {} or less",
       task.name, vocab, model.vocab_size(), model.vocab_size());
}

/// Runs one evaluation, length by length.
class Evaluation {
 public:
  Evaluation(const infer::LoadedModel& loaded, const TaskEvalOptions& options, const Progress& progress,
             distributed::ProcessGroup* group)
      : loaded_(loaded),
        task_(data::find_task(options.task)),
        progress_(progress),
        group_(group),
        result_{.options = options} {
    check_options(options);
    result_.options.expand_windows = options.expand_windows && !loaded.model->screening_heads().empty();
    check_vocabulary(task_, options, *loaded.model);
    if (!options.haystack.empty()) haystack_.emplace(options.haystack);
    const auto depths = static_cast<double>(std::max<size_t>(1, options.depths.size()));
    for (const int64_t length : options.lengths) {
      const double instances = depths * static_cast<double>(instances_of(options, length));
      data::require_memory_for(task_, length, instances);
      total_tokens_ += static_cast<double>(length) * instances;
    }
  }

  TaskResult run() {
    const double start = now_seconds();
    for (const int64_t length : result_.options.lengths) evaluate_length(length);
    result_.seconds = now_seconds() - start;
    return std::move(result_);
  }

 private:
  void evaluate_length(int64_t length) {
    std::vector<Question> questions;
    if (result_.options.depths.empty()) add_cell(length, std::nullopt, questions);
    for (const double depth : result_.options.depths) add_cell(length, depth, questions);
    std::ranges::stable_sort(questions, {}, &Question::tokens);
    const auto processes = static_cast<double>(group_ == nullptr ? 1 : group_->size());
    int64_t batch = 1;
    for (std::span<const Question> left = questions; !left.empty();) {
      const auto equal = std::ranges::upper_bound(left, left[0].tokens, {}, &Question::tokens) - left.begin();
      const auto now = left.first(std::min<size_t>(batch, equal));
      batch = evaluate_batch(now);
      left = left.subspan(now.size());
      done_tokens_ += static_cast<double>(length) * static_cast<double>(now.size()) * processes;
      if (progress_) progress_(std::min(done_tokens_, total_tokens_), total_tokens_);
    }
    for (size_t cell = result_.cells.size() - measured_.size(); cell < result_.cells.size(); ++cell) sum_up(cell);
    measured_.clear();
  }

  void add_cell(int64_t length, std::optional<double> depth, std::vector<Question>& questions) {
    const TaskEvalOptions& options = result_.options;
    TaskCell cell{.length = length, .depth = depth, .instances = instances_of(options, length)};
    const data::TaskRequest request{.length = length,
                                    .depth = depth,
                                    .seed = options.seed,
                                    .settings = options.settings,
                                    .haystack = haystack_ ? &*haystack_ : nullptr};
    for (int64_t index = 0; index < cell.instances; ++index) {
      if (group_ != nullptr && instances_++ % group_->size() != group_->rank()) continue;
      data::Instance instance = data::make_instance(task_, request, index);
      const auto tokens = static_cast<int64_t>(ids_of(loaded_, instance).size());
      cell.prompt_tokens = std::max(cell.prompt_tokens, tokens);
      questions.push_back({result_.cells.size(), index, std::move(instance), tokens});
    }
    result_.cells.push_back(cell);
    measured_[result_.cells.size() - 1].resize(static_cast<size_t>(cell.instances));
  }

  /// Sums over the instances of a cell in their order, so that the bits do not depend on the number of processes.
  void sum_up(size_t at) {
    TaskCell& cell = result_.cells[at];
    std::vector<Measured>& all = measured_.at(at);
    if (group_ != nullptr) {
      const auto tokens = static_cast<double>(cell.prompt_tokens);
      cell.prompt_tokens = static_cast<int64_t>(std::ranges::max(group_->gather(std::span(&tokens, 1))));
    }
    share_numbers(group_, {reinterpret_cast<double*>(all.data()), all.size() * sizeof(Measured) / sizeof(double)});
    for (const Measured& one : all) {
      cell.correct += one.correct == 1;
      cell.score_sum += one.score;
      cell.needle_sum += one.needle;
      cell.needle_best_sum += one.needle_best;
    }
  }

  Measured& measured(const Question& question) { return measured_.at(question.cell)[question.index]; }

  /// Scores the questions and returns how many fit into one batch.
  int64_t evaluate_batch(std::span<const Question> questions) {
    const TaskEvalOptions& options = result_.options;
    const size_t trials = result_.trials.size();
    if (options.needle_score) add_needle_scores(questions);
    const BatchScores result =
        std::visit([&](const auto& kind) { return score_batch(kind, loaded_, questions, options); }, task_.kind);
    for (size_t i = 0; i < questions.size(); ++i) {
      measured(questions[i]).correct = result.scores[i] == 1 ? 1 : 0;
      measured(questions[i]).score = result.scores[i];
      if (!options.needle_score) continue;
      result_.trials[trials + i].right = result.scores[i] == 1;
      result_.trials[trials + i].first_right = result.first_right[i];
    }
    const int64_t bytes_each = std::max<int64_t>(1, result.state_bytes / static_cast<int64_t>(questions.size()));
    return std::clamp<int64_t>(options.state_bytes / bytes_each, 1, options.max_sequences);
  }

  void add_needle_scores(std::span<const Question> questions) {
    for (const Question& question : questions) {
      const auto& instance = std::get<data::TextInstance>(question.instance);
      const at::Tensor needle_LH = needle_score(loaded_, result_.options, instance);
      measured(question).needle = needle_LH.mean().item<double>();
      measured(question).needle_best = needle_LH.max().item<double>();
      result_.trials.push_back({.cell = question.cell, .needle_LH = needle_LH});
    }
  }

  const infer::LoadedModel& loaded_;
  const data::Task& task_;
  const Progress& progress_;
  distributed::ProcessGroup* group_;  // null: a single process
  int64_t instances_ = 0;             // so far, of all processes
  TaskResult result_;
  std::map<size_t, std::vector<Measured>> measured_;  // of the cells of the current length
  std::optional<data::Haystack> haystack_;
  double done_tokens_ = 0;
  double total_tokens_ = 0;
};

}  // namespace

TaskCell TaskResult::total(int64_t length) const {
  TaskCell sum{.length = length};
  for (const TaskCell& cell : cells) {
    if (cell.length != length) continue;
    sum.prompt_tokens = std::max(sum.prompt_tokens, cell.prompt_tokens);
    sum.instances += cell.instances;
    sum.correct += cell.correct;
    sum.score_sum += cell.score_sum;
    sum.needle_sum += cell.needle_sum;
    sum.needle_best_sum += cell.needle_best_sum;
  }
  return sum;
}

TaskResult evaluate_task(const infer::LoadedModel& loaded, const TaskEvalOptions& options, const Progress& progress,
                         distributed::ProcessGroup* group) {
  return Evaluation(loaded, options, progress, group).run();
}

}  // namespace tamis::eval
