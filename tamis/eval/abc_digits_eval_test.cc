#include "tamis/eval/abc_digits_eval.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <istream>
#include <ostream>

#include "tamis/base/testing.h"
#include "tamis/data/abc_digits.h"
#include "tamis/eval/interval.h"
#include "tamis/infer/testing.h"

namespace tamis::eval {
namespace {

using tamis::testing::error_of;
using ::testing::HasSubstr;
using ::testing::Not;

/// What a Retriever has read and still remembers.
class Memory : public models::DecodingState {
 public:
  explicit Memory(size_t tokens) : tokens_(tokens) {}

  void read(char character) {
    ++position_;
    text_ += character;
    if (text_.size() > tokens_) text_.erase(0, text_.size() - tokens_);
  }
  /// The next digit of `L=` + digits at the end, as the only line in memory that begins so tells it; else a newline.
  char next() const {
    const size_t last = text_.rfind('\n') + 1;
    const size_t digits = text_.size() - last;  // with `L=`
    const size_t line = fmt::format("\n{}", text_).find(fmt::format("\n{}", text_.substr(last, 2)));
    return line < last ? text_[line + digits] : '\n';
  }

  int64_t position() const override { return position_; }
  int64_t bytes() const override { return static_cast<int64_t>(text_.size()); }
  int64_t bytes_after(int64_t tokens) const override {
    return static_cast<int64_t>(std::min(tokens_, text_.size() + static_cast<size_t>(tokens)));
  }
  void reserve(int64_t tokens) override { text_.reserve(static_cast<size_t>(bytes_after(tokens))); }
  std::unique_ptr<models::DecodingState> fork() const override { return std::make_unique<Memory>(*this); }
  void save(std::ostream& out) const override { out << text_; }
  void load(std::istream& in) override { in >> text_; }

 private:
  size_t tokens_;
  std::string text_;
  int64_t position_ = 0;
};

/// A model without weights that answers ABCDigits from the newest `memory` tokens, or from all with expanded windows:
/// its accuracy is known in every cell.
class Retriever : public models::Model {
 public:
  explicit Retriever(size_t memory) : memory_(memory) {}

  const nlohmann::json& config() const override { return config_; }
  int64_t vocab_size() const override { return 257; }
  int64_t hidden_size() const override { return 257; }
  int64_t training_length() const override { return static_cast<int64_t>(memory_); }
  std::vector<models::Parameter> parameters() const override { return {}; }
  std::vector<nn::NamedTensor> checkpoint_tensors(std::span<const at::Tensor>) const override { return {}; }
  at::Tensor hidden(const at::Tensor&, const models::ForwardOptions&) const override { return {}; }
  at::Tensor head_weight() const override { return at::eye(257); }
  models::Flops flops_per_token(int64_t) const override { return {}; }
  std::vector<models::RelevanceMap> relevance(const at::Tensor&, const models::ForwardOptions&) const override {
    return {};
  }
  std::vector<Tile> tiles() const override { return {}; }

  std::unique_ptr<models::DecodingState> new_state(const models::ForwardOptions& options) const override {
    return std::make_unique<Memory>(options.expand_windows ? SIZE_MAX : memory_);
  }

  at::Tensor decode(const at::Tensor& tokens_BC, std::span<models::DecodingState* const> states) const override {
    most_sequences = std::max<int64_t>(most_sequences, tokens_BC.size(0));
    most_tokens = std::max<int64_t>(most_tokens, tokens_BC.numel());
    at::Tensor x_BCN = at::zeros({tokens_BC.size(0), tokens_BC.size(1), 257});
    for (int64_t b = 0; b < tokens_BC.size(0); ++b) {
      auto& memory = dynamic_cast<Memory&>(*states[b]);
      for (int64_t t = 0; t < tokens_BC.size(1); ++t) memory.read(static_cast<char>(tokens_BC[b][t].item<int64_t>()));
      x_BCN[b][-1][memory.next()] = 1;
    }
    return x_BCN;
  }

  mutable int64_t most_sequences = 0;
  mutable int64_t most_tokens = 0;

 private:
  size_t memory_;
  nlohmann::json config_;
};

infer::LoadedModel retriever(size_t memory) {
  return {.checkpoint = {}, .model = std::make_unique<Retriever>(memory), .tokenizer = text::make_byte_tokenizer()};
}

const Retriever& model_of(const infer::LoadedModel& loaded) {
  return dynamic_cast<const Retriever&>(*loaded.model);
}

constexpr size_t kMemory = 200;
const AbcDigitsEvalOptions kSmall = {
    .lengths = {256, 600}, .depths = {0.1, 0.5, 0.9}, .instances = 7, .expand_windows = false};

/// The retriever still sees the target at its last digit: six digits, the query and the lines since.
bool remembered(const data::AbcDigitsInstance& instance) {
  return instance.prompt.size() + 5 - 9 * static_cast<size_t>(instance.target_line) <= kMemory;
}

TEST(AbcDigitsEval, CountsExactlyWhatIsRetrieved) {
  const auto result = evaluate_abc_digits(retriever(kMemory), kSmall);
  ASSERT_EQ(result.cells.size(), 6u);
  int64_t expected_total = 0;
  for (const AbcDigitsCell& cell : result.cells) {
    int64_t expected = 0;
    for (uint64_t i = 0; i < 7; ++i) expected += remembered(data::abc_digits_instance(cell.length, cell.depth, 0, i));
    EXPECT_EQ(cell.correct, expected) << cell.length << " " << cell.depth;
    EXPECT_EQ(cell.instances, 7);
    EXPECT_EQ(cell.prompt_tokens, cell.length == 256 ? 254 : 596);
    expected_total += expected;
  }
  EXPECT_EQ(expected_total, 4 * 7 - 7);  // 256: depths 0.5 and 0.9; 600: 0.9
  EXPECT_EQ(result.total(256).correct, 14);
  EXPECT_EQ(result.total(600).instances, 21);
}

TEST(AbcDigitsEval, ExpandedWindowsReachTheModel) {
  AbcDigitsEvalOptions options = kSmall;
  options.expand_windows = true;
  const auto result = evaluate_abc_digits(retriever(kMemory), options);
  for (const AbcDigitsCell& cell : result.cells) EXPECT_EQ(cell.correct, 7);
}

TEST(AbcDigitsEval, BatchesAsTheMemoryAllows) {
  AbcDigitsEvalOptions options = kSmall;
  options.chunk_tokens = 100;
  options.state_bytes = 3 * static_cast<int64_t>(kMemory);
  const auto tight = retriever(kMemory);
  const auto result = evaluate_abc_digits(tight, options);
  EXPECT_EQ(model_of(tight).most_sequences, 3);
  EXPECT_LE(model_of(tight).most_tokens, 100);

  const auto roomy = retriever(kMemory);
  const auto same = evaluate_abc_digits(roomy, kSmall);
  EXPECT_EQ(model_of(roomy).most_sequences, 20);  // of 21; the first went alone
  for (size_t c = 0; c < result.cells.size(); ++c) EXPECT_EQ(result.cells[c].correct, same.cells[c].correct);
}

TEST(AbcDigitsEval, ReportsProgressUpToTheEnd) {
  double last = 0;
  evaluate_abc_digits(retriever(kMemory), kSmall, [&](double done, double total) {
    EXPECT_GT(done, last);
    last = done;
    EXPECT_DOUBLE_EQ(total, (256 + 600) * 3 * 7);
  });
  EXPECT_DOUBLE_EQ(last, (256 + 600) * 3 * 7);
}

TEST(AbcDigitsEval, RunsARealModel) {
  const tamis::testing::TemporaryDirectory directory;
  const auto loaded = infer::load(infer::testing::write_checkpoint(directory.path() / "model"));
  const auto result = evaluate_abc_digits(loaded, {.lengths = {240}, .depths = {0.5}, .instances = 5});
  EXPECT_EQ(result.cells[0].correct, 0);  // one in a million by chance
  EXPECT_EQ(result.cells[0].instances, 5);
}

TEST(AbcDigitsEval, RefusesBadOptions) {
  const auto error = [](const AbcDigitsEvalOptions& options) {
    const auto [code, text] = error_of([&] { evaluate_abc_digits(retriever(kMemory), options); });
    EXPECT_EQ(code, ExitCode::kUsage);
    return text;
  };
  EXPECT_THAT(error({.lengths = {512, 200}}), HasSubstr("a length of 200 is too short for 26 lines and the query; the "
                                                        "least is 236"));
  EXPECT_THAT(error({.lengths = {}}), HasSubstr("no lengths"));
  EXPECT_THAT(error({.depths = {}}), HasSubstr("no depths"));
  EXPECT_THAT(error({.depths = {0.5, 1.2}}), HasSubstr("depth must be in 0..1, but is 1.2"));
  EXPECT_THAT(error({.instances = 0}), HasSubstr("instances must be at least 1"));
}

TEST(AbcDigitsEval, JsonHoldsEveryCell) {
  const nlohmann::json json = to_json(evaluate_abc_digits(retriever(kMemory), kSmall));
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
  EXPECT_NEAR(cell["wilson_95"][0].get<double>(), 0.6457, 1e-4);
  EXPECT_EQ(cell["wilson_95"][1], 1.0);
  EXPECT_NEAR(json["by_length"][1]["exact_match"].get<double>(), 1 / 3.0, 1e-12);
}

TEST(AbcDigitsEval, TableIsPlainWithoutColour) {
  const auto result = evaluate_abc_digits(retriever(kMemory), kSmall);
  const std::string plain = to_table(result, /*colour=*/false);
  EXPECT_THAT(plain, Not(HasSubstr("\x1b")));
  EXPECT_THAT(plain, HasSubstr("7 instances a cell, windows as trained"));
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
