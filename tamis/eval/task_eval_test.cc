#include "tamis/eval/task_eval.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <istream>
#include <ostream>

#include "tamis/base/testing.h"
#include "tamis/data/abc_digits.h"
#include "tamis/data/testing.h"
#include "tamis/eval/interval.h"
#include "tamis/infer/testing.h"

namespace tamis::eval {
namespace {

using tamis::testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

/// The id with the largest logit, given the ids that an oracle remembers.
using Say = std::function<int64_t(std::span<const int64_t> seen)>;

/// The ids that an Oracle has read and still remembers.
class Memory : public models::DecodingState {
 public:
  explicit Memory(size_t tokens) : tokens_(tokens) {}

  void read(int64_t id) {
    ++position_;
    seen_.push_back(id);
    if (seen_.size() > tokens_) seen_.erase(seen_.begin());
  }
  std::span<const int64_t> seen() const { return seen_; }

  int64_t position() const override { return position_; }
  int64_t bytes() const override { return static_cast<int64_t>(seen_.size()); }
  int64_t bytes_after(int64_t tokens) const override {
    return static_cast<int64_t>(std::min(tokens_, seen_.size() + static_cast<size_t>(tokens)));
  }
  void reserve(int64_t tokens) override { seen_.reserve(static_cast<size_t>(bytes_after(tokens))); }
  std::unique_ptr<models::DecodingState> fork() const override { return std::make_unique<Memory>(*this); }
  void save(std::ostream&) const override {}
  void load(std::istream&) override {}

 private:
  size_t tokens_;
  std::vector<int64_t> seen_;
  int64_t position_ = 0;
};

/// A model without weights that applies a given function to the last `memory` tokens, or to all tokens with expanded
/// windows, so that its accuracy is known in every cell.
class Oracle : public models::Model {
 public:
  Oracle(size_t memory, Say say) : memory_(memory), say_(std::move(say)) {}

  const nlohmann::json& config() const override { return config_; }
  int64_t vocab_size() const override { return kVocab; }
  int64_t hidden_size() const override { return kVocab; }
  int64_t training_length() const override { return static_cast<int64_t>(memory_); }
  std::vector<models::Parameter> parameters() const override { return {}; }
  std::vector<nn::NamedTensor> checkpoint_tensors(std::span<const at::Tensor>) const override { return {}; }
  at::Tensor hidden(const at::Tensor&, const models::ForwardOptions&) const override { return {}; }
  at::Tensor head_weight() const override { return at::eye(kVocab); }
  models::Flops flops_per_token(int64_t, bool) const override { return {}; }
  std::vector<models::RelevanceMap> relevance(const at::Tensor&, const models::ForwardOptions&) const override {
    return {};
  }
  /// Two heads: one attends uniformly to the last 14 tokens, the other to none.
  at::Tensor attention_mass(const at::Tensor& tokens_1T, int64_t first, int64_t last,
                            const models::ForwardOptions&) const override {
    const at::Tensor row_T = at::zeros({tokens_1T.size(1)}, at::kDouble);
    row_T.narrow(0, tokens_1T.size(1) - 14, 14).fill_(1.0 / 14);
    return at::stack({row_T.narrow(0, first, last - first).sum(), at::zeros({}, at::kDouble)}).view({1, 2});
  }
  std::vector<ScreeningHead> screening_heads() const override { return {{0, 0, 16.0, 0.5}}; }  // a finite window
  int64_t relevance_maps() const override { return 1; }

  std::unique_ptr<models::DecodingState> new_state(const models::ForwardOptions& options) const override {
    return std::make_unique<Memory>(options.expand_windows ? SIZE_MAX : memory_);
  }

  at::Tensor decode(const at::Tensor& tokens_BC, std::span<models::DecodingState* const> states) const override {
    most_sequences = std::max<int64_t>(most_sequences, tokens_BC.size(0));
    most_tokens = std::max<int64_t>(most_tokens, tokens_BC.numel());
    const int64_t B = tokens_BC.size(0), C = tokens_BC.size(1);
    at::Tensor x_BCN = at::zeros({B, C, kVocab});
    for (int64_t b = 0; b < B; ++b) {
      auto& memory = dynamic_cast<Memory&>(*states[b]);
      for (int64_t t = 0; t < C; ++t) {
        memory.read(tokens_BC.const_data_ptr<int64_t>()[b * C + t]);
        x_BCN.data_ptr<float>()[(b * C + t) * kVocab + say_(memory.seen())] = 1;
      }
    }
    return x_BCN;
  }

  mutable int64_t most_sequences = 0;
  mutable int64_t most_tokens = 0;

 private:
  static constexpr int64_t kVocab = 257;
  size_t memory_;
  Say say_;
  nlohmann::json config_;
};

std::string text_of(std::span<const int64_t> ids) {
  return {ids.begin(), ids.end()};
}

/// The next digit after `L=` and digits at the end, if exactly one line in memory begins with these; else a newline.
int64_t next_abc_digit(std::span<const int64_t> seen) {
  const std::string text = text_of(seen);
  const size_t last = text.rfind('\n') + 1;
  const size_t digits = text.size() - last;  // with `L=`
  const size_t line = fmt::format("\n{}", text).find(fmt::format("\n{}", text.substr(last, 2)));
  return line < last ? text[line + digits] : '\n';
}

/// The next character of the needle's number and a full stop after the question, as the task's solver finds it.
int64_t next_of_needle(std::span<const int64_t> seen) {
  const std::string text = text_of(seen), question = "number is:";
  const size_t end = text.rfind(question);
  if (end == text.npos) return '.';
  const size_t said = text.size() - end - question.size();
  const auto answers = data::testing::text_task("needle").solve(text.substr(0, end + question.size()));
  const std::string answer = answers.empty() ? "." : fmt::format(" {}.", answers[0]);
  return said < answer.size() ? answer[said] : '.';
}

/// The answer of a token task after the ids seen; 0 if there is no query.
Say solver_of(const std::string& task, const data::Settings& settings) {
  return [solve = data::testing::token_task(task).solve, settings](std::span<const int64_t> seen) {
    return solve(seen, settings).value_or(0);
  };
}

infer::LoadedModel oracle(size_t memory, const Say& say) {
  return {.checkpoint = {}, .model = std::make_unique<Oracle>(memory, say), .tokenizer = text::make_byte_tokenizer()};
}

infer::LoadedModel retriever(size_t memory) {
  return oracle(memory, next_abc_digit);
}

const Oracle& model_of(const infer::LoadedModel& loaded) {
  return dynamic_cast<const Oracle&>(*loaded.model);
}

constexpr size_t kMemory = 200;
const TaskEvalOptions kSmall = {
    .lengths = {256, 600}, .depths = {0.1, 0.5, 0.9}, .instances = 7, .expand_windows = false};

/// True when the target is still in memory at the last digit: six digits, the query and the lines after the target.
bool remembered(const data::AbcDigitsInstance& instance) {
  return instance.prompt.size() + 5 - 9 * static_cast<size_t>(instance.target_line) <= kMemory;
}

TEST(TaskEval, CountsExactlyWhatIsRetrieved) {
  const auto result = evaluate_task(retriever(kMemory), kSmall);
  ASSERT_EQ(result.cells.size(), 6u);
  int64_t expected_total = 0;
  for (const TaskCell& cell : result.cells) {
    int64_t expected = 0;
    for (uint64_t i = 0; i < 7; ++i) expected += remembered(data::abc_digits_instance(cell.length, *cell.depth, 0, i));
    EXPECT_EQ(cell.correct, expected) << cell.length << " " << *cell.depth;
    EXPECT_EQ(cell.instances, 7);
    EXPECT_EQ(cell.prompt_tokens, cell.length == 256 ? 254 : 596);
    expected_total += expected;
  }
  EXPECT_EQ(expected_total, 4 * 7 - 7);  // 256: depths 0.5 and 0.9; 600: 0.9
  EXPECT_EQ(result.total(256).correct, 14);
  EXPECT_EQ(result.total(600).instances, 21);
}

TEST(TaskEval, ExpandedWindowsReachTheModel) {
  TaskEvalOptions options = kSmall;
  options.expand_windows = true;
  const auto result = evaluate_task(retriever(kMemory), options);
  for (const TaskCell& cell : result.cells) EXPECT_EQ(cell.correct, 7);
}

TEST(TaskEval, BatchesAreLimitedByMemory) {
  TaskEvalOptions options = kSmall;
  options.chunk_tokens = 100;
  options.state_bytes = 3 * static_cast<int64_t>(kMemory);
  const auto tight = retriever(kMemory);
  const auto result = evaluate_task(tight, options);
  EXPECT_EQ(model_of(tight).most_sequences, 3);
  EXPECT_LE(model_of(tight).most_tokens, 100);

  const auto roomy = retriever(kMemory);
  const auto same = evaluate_task(roomy, kSmall);
  EXPECT_EQ(model_of(roomy).most_sequences, 20);  // of 21; the first one was a batch of its own
  for (size_t c = 0; c < result.cells.size(); ++c) EXPECT_EQ(result.cells[c].correct, same.cells[c].correct);
}

TEST(TaskEval, ReportsProgressUpToTheEnd) {
  double last = 0;
  evaluate_task(retriever(kMemory), kSmall, [&](double done, double total) {
    EXPECT_GT(done, last);
    last = done;
    EXPECT_DOUBLE_EQ(total, (256 + 600) * 3 * 7);
  });
  EXPECT_DOUBLE_EQ(last, (256 + 600) * 3 * 7);
}

TEST(TaskEval, ReadsPromptsOfUnequalLengths) {
  const TaskEvalOptions options{.task = "needle", .lengths = {300, 500}, .instances = 20, .expand_windows = false};
  const auto all = oracle(SIZE_MAX, next_of_needle);
  const auto result = evaluate_task(all, options);
  ASSERT_EQ(result.cells.size(), 2u);
  for (const TaskCell& cell : result.cells) {
    EXPECT_EQ(cell.depth, std::nullopt);
    EXPECT_EQ(cell.correct, 20);
    EXPECT_LE(cell.prompt_tokens, cell.length);
    EXPECT_GT(cell.prompt_tokens, cell.length - 40);
  }
  EXPECT_GT(model_of(all).most_sequences, 1);
  EXPECT_LT(model_of(all).most_sequences, 19);  // some prompts are longer

  TaskEvalOptions in_pieces = options;
  in_pieces.chunk_tokens = 64;
  in_pieces.state_bytes = 700;
  const auto some = evaluate_task(oracle(250, next_of_needle), options);
  const auto same = evaluate_task(oracle(250, next_of_needle), in_pieces);
  EXPECT_GT(some.total(500).correct, 0);
  EXPECT_LT(some.total(500).correct, 20);
  EXPECT_EQ(some.total(500).correct, same.total(500).correct);
}

/// The mean of an oracle's scores on the first instances of a length, computed independently.
double expected_score(const data::TaskRequest& request, int64_t instances, size_t memory, const Say& say) {
  double sum = 0;
  for (int64_t index = 0; index < instances; ++index) {
    const auto instance = data::testing::token_instance("mqar", request, index);
    double right = 0;
    for (size_t i = 0; i < instance.answers.size(); ++i) {
      const auto read = std::span(instance.ids).first(instance.answer_positions[i] + 1);
      right += say(read.last(std::min(memory, read.size()))) == instance.answers[i];
    }
    sum += right / static_cast<double>(instance.answers.size());
  }
  return sum / static_cast<double>(instances);
}

TEST(TaskEval, ScoresTheShareOfTokensThatAreRight) {
  const data::Settings settings = {{"pairs", 4}, {"vocab", 64}};
  const Say say = solver_of("mqar", settings);
  const TaskEvalOptions options{
      .task = "mqar", .lengths = {32, 64}, .instances = 9, .settings = settings, .expand_windows = false};
  const auto right = evaluate_task(oracle(SIZE_MAX, say), options);
  EXPECT_EQ(right.total(64).correct, 9);
  EXPECT_EQ(right.total(64).score_sum, 9);
  EXPECT_EQ(right.total(64).prompt_tokens, 64);

  TaskEvalOptions in_pieces = options;
  in_pieces.chunk_tokens = 7;
  constexpr size_t kFew = 24;
  const auto forgetful = oracle(kFew, say);
  const auto result = evaluate_task(forgetful, options);
  const auto same = evaluate_task(oracle(kFew, say), in_pieces);
  EXPECT_EQ(model_of(forgetful).most_sequences, 8);  // of 9; the first one was a batch of its own
  for (const int64_t length : options.lengths) {
    const double expected = expected_score({.length = length, .settings = settings}, 9, kFew, say);
    EXPECT_NEAR(result.total(length).score_sum / 9, expected, 1e-12);
    EXPECT_NEAR(same.total(length).score_sum / 9, expected, 1e-12);
    EXPECT_GT(expected, 0);
    EXPECT_LT(expected, 1);
  }
  EXPECT_THAT(to_table(right, /*colour=*/false), HasSubstr("mqar: exact match in percent"));
  EXPECT_THAT(to_table(result, /*colour=*/false), HasSubstr("mqar: score in percent"));
  EXPECT_THAT(to_table(result, /*colour=*/false), HasSubstr("\nexact "));
  const nlohmann::json json = to_json(result);
  EXPECT_EQ(json["settings"], (nlohmann::json{{"pairs", 4}, {"vocab", 64}}));
  EXPECT_FALSE(json["cells"][0].contains("depth"));
  EXPECT_DOUBLE_EQ(json["by_length"][1]["score"], result.total(64).score_sum / 9);
}

TEST(TaskEval, ReportsTheVocabularyOfTheModel) {
  const auto [code, text] =
      error_of([&] { evaluate_task(oracle(SIZE_MAX, solver_of("mqar", {})), {.task = "mqar", .lengths = {64}}); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_EQ(text, "mqar: its 8192 ids are more than the model's vocabulary of 257; give --vocab 257 or less");
}

TEST(TaskEval, CellsHaveABudgetOfTokens) {
  TaskEvalOptions options = kSmall;
  options.cell_tokens = 1100;
  const auto result = evaluate_task(retriever(kMemory), options);
  EXPECT_EQ(result.cells[0].instances, 4);
  EXPECT_EQ(result.cells[5].instances, 1);
  EXPECT_EQ(result.total(256).instances, 12);
  EXPECT_EQ(to_json(result)["cell_tokens"], 1100);
  EXPECT_THAT(to_table(result, /*colour=*/false), HasSubstr("at most 7 instances per cell"));
  options.cell_tokens = 1'000'000;
  EXPECT_EQ(evaluate_task(retriever(kMemory), options).cells[0].instances, 7);
}

TEST(TaskEval, EveryTaskHasDefaultsThatFit) {
  for (const data::Task& task : data::tasks()) {
    TaskEvalOptions options = default_options(task);
    if (task.haystack == data::HaystackUse::kRequired) options.haystack = "essays.txt";
    EXPECT_NO_THROW(check_options(options)) << task.name;
    EXPECT_EQ(options.depths.empty(), !task.takes_depth) << task.name;
  }
  EXPECT_EQ(default_options(data::find_task("mqar")).lengths, (std::vector<int64_t>{64, 128, 256, 512, 1024}));
}

TEST(TaskEval, HidesNeedlesInAGivenText) {
  const tamis::testing::TemporaryDirectory directory;
  const auto essays = directory.write("essays.txt", "It was a dark night. Nobody had come.");
  const auto loaded = infer::load(infer::testing::write_checkpoint(directory.path() / "model"));
  const auto result =
      evaluate_task(loaded, {.task = "niah_single_2", .lengths = {800}, .instances = 2, .haystack = essays});
  EXPECT_EQ(result.cells[0].instances, 2);
  EXPECT_EQ(to_json(result)["haystack"], essays.string());
}

TEST(TaskEval, MeasuresTheAttentionOnTheAnswer) {
  TaskEvalOptions options{.task = "abc_digits", .lengths = {236}, .depths = {0, 1}, .instances = 2};
  EXPECT_FALSE(to_json(evaluate_task(retriever(kMemory), options))["cells"][0].contains("needle_score"));
  options.needle_score = true;
  const auto result = evaluate_task(retriever(kMemory), options);
  const nlohmann::json json = to_json(result);
  EXPECT_EQ(json["cells"][0]["needle_score"], 0.0);
  EXPECT_NEAR(json["cells"][1]["needle_score_best_head"].get<double>(), 6 / 14.0, 1e-9);  // a newline and L= after it
  EXPECT_NEAR(json["cells"][1]["needle_score"].get<double>(), 3 / 14.0, 1e-9);
  EXPECT_NEAR(json["by_length"][0]["needle_score"].get<double>(), 1.5 / 14, 1e-9);
  EXPECT_THAT(to_table(result, /*colour=*/false), HasSubstr("\nmean          10.7 \nbest          21.4 \n"));

  const auto error = [](const std::string& task, int64_t length) {
    const TaskEvalOptions wrong{.task = task, .lengths = {length}, .needle_score = true};
    return error_of([&] { evaluate_task(retriever(kMemory), wrong); }).second;
  };
  EXPECT_THAT(error("copy", 64), HasSubstr("copy: has no needle score"));
  EXPECT_THAT(error("variable_tracking", 4096), HasSubstr("variable_tracking: its prompts have 5 answers"));
}

TEST(TaskEval, KeepsTheNeedleScoresOfHeadsAndInstances) {
  const TaskEvalOptions options{.task = "abc_digits",
                                .lengths = {236},
                                .depths = {0, 1},
                                .instances = 2,
                                .expand_windows = false,
                                .needle_score = true};
  const auto result = evaluate_task(retriever(kMemory), options);
  ASSERT_EQ(result.trials.size(), 4u);
  for (const NeedleTrial& trial : result.trials) {
    const double best = trial.cell == 1 ? 6 / 14.0 : 0;  // the model attends to the last 14 tokens
    EXPECT_TRUE(at::allclose(trial.needle_LH, at::tensor({best, 0.0}, at::kDouble).view({1, 2})));
    EXPECT_EQ(trial.right, trial.cell == 1);
    if (trial.right) {
      EXPECT_TRUE(trial.first_right);
    }
  }
  const auto first = oracle(SIZE_MAX, [](std::span<const int64_t> seen) {  // the first digit, then nothing
    const int64_t next = next_of_needle(seen);
    return text_of(seen).ends_with("is:") || text_of(seen).ends_with("is: ") ? next : '.';
  });
  const TaskEvalOptions needles{.task = "needle", .lengths = {300}, .instances = 3, .needle_score = true};
  for (const NeedleTrial& trial : evaluate_task(first, needles).trials) {
    EXPECT_FALSE(trial.right);
    EXPECT_TRUE(trial.first_right);
  }
}

TEST(TaskEval, ContinuesWithTokensThatDoNotEndTheText) {
  // The logit of the end of the text is the largest, and that of the right answer the next.
  class Ends : public Oracle {
   public:
    using Oracle::Oracle;
    at::Tensor decode(const at::Tensor& tokens_BC, std::span<models::DecodingState* const> states) const override {
      at::Tensor x_BCN = Oracle::decode(tokens_BC, states);
      x_BCN.select(-1, text::make_byte_tokenizer()->end_of_text()).fill_(2);
      return x_BCN;
    }
  };
  const infer::LoadedModel loaded{.checkpoint = {},
                                  .model = std::make_unique<Ends>(SIZE_MAX, next_of_needle),
                                  .tokenizer = text::make_byte_tokenizer()};
  TaskEvalOptions options{.task = "needle", .lengths = {300}, .instances = 4};
  EXPECT_EQ(evaluate_task(loaded, options).cells[0].correct, 0);
  EXPECT_FALSE(to_json(evaluate_task(loaded, options)).contains("skip_end_of_text"));
  options.skip_end_of_text = true;
  EXPECT_EQ(evaluate_task(loaded, options).cells[0].correct, 4);
  EXPECT_EQ(to_json(evaluate_task(loaded, options))["skip_end_of_text"], true);
}

TEST(TaskEval, SkipsNothingWithoutAnEndOfText) {
  class WithoutEndOfText : public text::Tokenizer {
   public:
    std::string name() const override { return "without end of text"; }
    int64_t vocab_size() const override { return 257; }
    std::vector<int64_t> encode(std::string_view text) const override { return bytes_->encode(text); }
    std::string decode(std::span<const int64_t> ids) const override { return bytes_->decode(ids); }
    std::unique_ptr<text::StreamDecoder> stream_decoder(std::span<const int64_t>) const override { return nullptr; }
    int64_t end_of_text() const override { return -1; }
    std::string to_json() const override { return "{}"; }

   private:
    std::unique_ptr<text::Tokenizer> bytes_ = text::make_byte_tokenizer();
  };
  bool last_id_is_said = false;  // the model says the last id of the vocabulary, and reads what it said
  infer::LoadedModel loaded = oracle(SIZE_MAX, [&](std::span<const int64_t> seen) {
    last_id_is_said = last_id_is_said || seen.back() == 256;
    return int64_t{256};
  });
  loaded.tokenizer = std::make_unique<WithoutEndOfText>();
  evaluate_task(loaded, {.task = "needle", .lengths = {300}, .instances = 1, .skip_end_of_text = true});
  EXPECT_TRUE(last_id_is_said);
}

TEST(TaskEval, RunsARealModel) {
  const tamis::testing::TemporaryDirectory directory;
  const auto loaded = infer::load(infer::testing::write_checkpoint(directory.path() / "model"));
  const auto result = evaluate_task(loaded, {.lengths = {240}, .depths = {0.5}, .instances = 5});
  EXPECT_EQ(result.cells[0].correct, 0);  // a random guess is right once in a million
  EXPECT_EQ(result.cells[0].instances, 5);
}

TEST(TaskEval, RefusesBadOptions) {
  const auto error = [](const TaskEvalOptions& options) {
    const auto [code, text] = error_of([&] { evaluate_task(retriever(kMemory), options); });
    EXPECT_EQ(code, ExitCode::kUsage);
    return text;
  };
  EXPECT_THAT(error({.lengths = {512, 200}}), HasSubstr("a length of 200 tokens is too short; the least is 236"));
  EXPECT_THAT(error({.lengths = {}}), HasSubstr("no lengths"));
  EXPECT_THAT(error({.lengths = {256}, .depths = {0.5, 1.2}}), HasSubstr("depth must be in 0..1, but is 1.2"));
  EXPECT_THAT(error({.lengths = {256}, .instances = 0}), HasSubstr("instances must be at least 1"));
  EXPECT_THAT(error({.lengths = {256}, .cell_tokens = -1}), HasSubstr("tokens per cell must be 0"));
  EXPECT_THAT(error({.task = "mqarr", .lengths = {64}}), HasSubstr("did you mean \"mqar\"?"));
  EXPECT_THAT(error({.task = "mqar", .lengths = {64}, .depths = {0.5}}), HasSubstr("takes no depth"));
  EXPECT_THAT(error({.lengths = {256}, .settings = {{"pairs", 2}}}), HasSubstr("takes no setting"));
  EXPECT_THAT(error({.lengths = {256}, .haystack = "essays.txt"}), HasSubstr("takes no haystack"));
  EXPECT_THAT(error({.task = "niah_single_2", .lengths = {4096}}), HasSubstr("--haystack FILE"));
}

TEST(TaskEval, JsonHoldsEveryCell) {
  const nlohmann::json json = to_json(evaluate_task(retriever(kMemory), kSmall));
  EXPECT_EQ(json["task"], "abc_digits");
  EXPECT_EQ(json["lengths"], (std::vector<int64_t>{256, 600}));
  EXPECT_EQ(json["depths"], (std::vector<double>{0.1, 0.5, 0.9}));
  EXPECT_EQ(json["expand_windows"], false);
  ASSERT_EQ(json["cells"].size(), 6u);
  const auto& cell = json["cells"][5];
  EXPECT_EQ(cell["length"], 600);
  EXPECT_EQ(cell["depth"], 0.9);
  EXPECT_EQ(cell["correct"], 7);
  EXPECT_EQ(cell["instances"], 7);
  EXPECT_EQ(cell["exact_match"], 1.0);
  EXPECT_EQ(cell["score"], 1.0);
  EXPECT_NEAR(cell["wilson_95"][0].get<double>(), 0.6457, 1e-4);
  EXPECT_EQ(cell["wilson_95"][1], 1.0);
  EXPECT_NEAR(json["by_length"][1]["exact_match"].get<double>(), 1 / 3.0, 1e-12);
}

TEST(TaskEval, TableIsPlainWithoutColour) {
  const auto result = evaluate_task(retriever(kMemory), kSmall);
  const std::string plain = to_table(result, /*colour=*/false);
  EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
  EXPECT_THAT(plain, HasSubstr("7 instances per cell, windows as trained"));
  EXPECT_THAT(plain, HasSubstr("\n0.1            0.0        0.0 \n"));
  EXPECT_THAT(plain, HasSubstr("\n0.9          100.0      100.0 \n"));
  EXPECT_THAT(plain, HasSubstr("\nall           66.7       33.3 \n"));

  std::string coloured = to_table(result, /*colour=*/true);
  EXPECT_THAT(coloured, HasSubstr("\x1b[48;5;40m"));   // 100%
  EXPECT_THAT(coloured, HasSubstr("\x1b[48;5;160m"));  // 0%
  for (size_t start; (start = coloured.find('\x1b')) != coloured.npos;) {
    coloured.erase(start, coloured.find('m', start) - start + 1);
  }
  EXPECT_EQ(coloured, plain);
}

TEST(Interval, IsWilsons) {
  const auto expect = [](int64_t hits, int64_t trials, double low, double high) {
    EXPECT_NEAR(wilson_95(hits, trials).low, low, 5e-5) << hits;
    EXPECT_NEAR(wilson_95(hits, trials).high, high, 5e-5) << hits;
  };
  expect(0, 20, 0, 0.1611);
  expect(10, 20, 0.2993, 0.7007);
  expect(19, 20, 0.7639, 0.9911);
  expect(20, 20, 0.8389, 1);
  expect(0, 0, 0, 1);
}

}  // namespace
}  // namespace tamis::eval
