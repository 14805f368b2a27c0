#include "tamis/train/data_set.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "tamis/base/testing.h"
#include "tamis/data/prepare.h"

namespace tamis::train {
namespace {

using tamis::testing::error_of;
using tamis::testing::TemporaryDirectory;
using ::testing::HasSubstr;

Recipe text_recipe(const std::filesystem::path& file) {
  Recipe recipe;
  recipe.train.length = 8;
  recipe.train.validate_tokens = 1000;
  recipe.data.sources = {{.name = "letters", .kind = "text", .files = {file.string()}, .validation_fraction = 0.25}};
  return recipe;
}

DataSet open(const Recipe& recipe) {
  return open_data(recipe, *text::make_byte_tokenizer());
}

std::string counting_text(int64_t size) {
  std::string text;
  while (static_cast<int64_t>(text.size()) < size) text += static_cast<char>('0' + text.size() / 10 % 10);
  return text;
}

TEST(DataSet, ValidationWindowsCoverTheLastPartOfAText) {
  const TemporaryDirectory directory;
  const std::string text = counting_text(400);
  const DataSet data = open(text_recipe(directory.write("text", text)));
  ASSERT_EQ(data.validation.size(), 1);
  const auto& examples = data.validation[0].examples;
  ASSERT_EQ(examples.size(), 12);  // 100 tokens hold 12 windows of 8 and a target
  EXPECT_EQ(examples.front().tokens[0], text[300]);
  EXPECT_EQ(examples.back().targets[7], text[399]);
  EXPECT_EQ(data.training->example(3, 8).tokens.size(), 8);
}

TEST(DataSet, ValidationTokensAreLimited) {
  const TemporaryDirectory directory;
  Recipe recipe = text_recipe(directory.write("text", counting_text(400)));
  recipe.train.validate_tokens = 24;
  EXPECT_EQ(open(recipe).validation.at(0).examples.size(), 3);
  recipe.train.validate_tokens = 0;
  EXPECT_TRUE(open(recipe).validation.empty());
}

TEST(DataSet, ChecksumsOfTextsDiffer) {
  const TemporaryDirectory directory;
  const auto one = open(text_recipe(directory.write("text", counting_text(400)))).checksums;
  const auto two = open(text_recipe(directory.write("text", counting_text(200) + counting_text(205)))).checksums;
  EXPECT_EQ(one.count("letters"), 1);
  EXPECT_NE(one, two);
}

TEST(DataSet, BadTextsAreInputErrors) {
  const TemporaryDirectory directory;
  const auto [missing_code, missing] = error_of([&] { open(text_recipe(directory.path() / "missing")); });
  EXPECT_EQ(missing_code, ExitCode::kInput);
  EXPECT_THAT(missing, HasSubstr("missing"));
  const auto [empty_code, empty] = error_of([&] { open(text_recipe(directory.write("empty", ""))); });
  EXPECT_EQ(empty_code, ExitCode::kInput);
  EXPECT_THAT(empty, HasSubstr("is empty"));
  const auto [short_code, short_text] = error_of([&] { open(text_recipe(directory.write("short", "12345678"))); });
  EXPECT_EQ(short_code, ExitCode::kInput);
  EXPECT_THAT(short_text, HasSubstr("holds 6 tokens, but a sequence of 8 needs 9"));
  const auto [directory_code, ignored] = error_of([&] { open(text_recipe(directory.path())); });
  EXPECT_EQ(directory_code, ExitCode::kInput);
}

TEST(DataSet, SourcesOfOneKindDrawIndependently) {
  Recipe recipe;
  recipe.train.length = 64;
  recipe.train.validate_tokens = 64;
  recipe.data.sources = {{.name = "a", .kind = "abc_digits"}, {.name = "b", .kind = "abc_digits"}};
  const DataSet data = open(recipe);
  ASSERT_EQ(data.validation.size(), 2);
  EXPECT_NE(data.validation[0].examples[0].tokens, data.validation[1].examples[0].tokens);
}

Recipe task_recipe(const std::string& task, data::Settings settings = {}) {
  Recipe recipe;
  recipe.train.length = 512;
  recipe.train.validate_tokens = 1024;
  recipe.data.sources = {{.name = "a", .kind = task, .task = {.settings = std::move(settings)}}};
  return recipe;
}

TEST(DataSet, TasksHaveValidationExamplesThatTrainingNeverSees) {
  const DataSet data = open(task_recipe("passkey"));
  ASSERT_EQ(data.validation.size(), 1);
  const auto& examples = data.validation[0].examples;
  ASSERT_EQ(examples.size(), 2);
  EXPECT_NE(examples[0].tokens, examples[1].tokens);
  for (uint64_t index = 0; index < 50; ++index) {
    EXPECT_NE(data.training->example(index, 512).tokens, examples[0].tokens);
  }
}

TEST(DataSet, IdsOfATaskMustBeInTheVocabulary) {
  EXPECT_EQ(open(task_recipe("mqar", {{"vocab", 257}})).training->example(0, 512).tokens.size(), 512);
  const auto [code, text] = error_of([] { open(task_recipe("mqar")); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_EQ(text,
            "data.sources.a: mqar has 8192 ids, but model.vocab_size is 257; set data.sources.a.vocab to at most 257");
  Recipe large = task_recipe("mqar");
  large.model["vocab_size"] = 8192;
  EXPECT_NO_THROW(open(large));
}

/// A tokenizer with another name.
class OtherTokenizer : public text::Tokenizer {
 public:
  std::string name() const override { return "other"; }
  int64_t vocab_size() const override { return 257; }
  std::vector<int64_t> encode(std::string_view) const override { return {}; }
  std::string decode(std::span<const int64_t>) const override { return ""; }
  std::unique_ptr<text::StreamDecoder> stream_decoder(std::span<const int64_t>) const override { return nullptr; }
  int64_t end_of_text() const override { return -1; }
  std::string to_json() const override { return ""; }
};

TEST(DataSet, TextTasksNeedTheByteTokenizer) {
  for (const std::string task : {"passkey", "abc_digits"}) {
    const auto [code, text] = error_of([&] { open_data(task_recipe(task), OtherTokenizer()); });
    EXPECT_EQ(code, ExitCode::kUsage);
    EXPECT_THAT(text, HasSubstr("data.sources.a: " + task + " generates bytes; set data.tokenizer = \"byte\""));
  }
  EXPECT_NO_THROW(open_data(task_recipe("copy"), OtherTokenizer()));
}

TEST(DataSet, AHaystackHasAChecksum) {
  const TemporaryDirectory directory;
  Recipe recipe = task_recipe("niah_single_2");
  const auto [code, text] = error_of([&] { open(recipe); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(text, HasSubstr("haystack = \"FILE\""));
  recipe.data.sources[0].task.haystack = directory.write("one", "A text. And more.");
  const auto one = open(recipe).checksums;
  recipe.data.sources[0].task.haystack = directory.write("two", "Another text.");
  EXPECT_EQ(one.count("a"), 1);
  EXPECT_NE(one, open(recipe).checksums);
}

/// The corpus of texts a.txt, b.txt, ... of `length` letters each; every tenth one is held out.
std::string prepare_letters(const TemporaryDirectory& directory, int count, int length, double held_out = 0.1) {
  data::PrepareOptions options;
  for (int i = 0; i < count; ++i) {
    options.inputs.push_back(
        directory.write(fmt::format("{}.txt", i), std::string(length, static_cast<char>('a' + i))));
  }
  options.out = directory.path() / "corpus";
  options.validation_fraction = held_out;
  data::prepare(options, *text::make_byte_tokenizer());
  return options.out.string();
}

Recipe corpus_recipe(const std::string& path) {
  Recipe recipe;
  recipe.train.length = 8;
  recipe.train.validate_tokens = 80;
  recipe.data.sources = {{.name = "letters", .kind = "corpus", .path = {path}, .documents = true}};
  return recipe;
}

TEST(DataSet, ACorpusIsTrainedOnOnceInAnEpochAndValidatedOnItsHeldOutDocuments) {
  const TemporaryDirectory directory;
  Recipe recipe = corpus_recipe(prepare_letters(directory, 20, 15));
  const DataSet data = open(recipe);
  ASSERT_EQ(data.validation.size(), 1);
  ASSERT_EQ(data.validation[0].examples.size(), 3);  // 32 tokens hold 3 windows of 8 and a target
  EXPECT_EQ(data.validation[0].examples[0].tokens, std::vector<int64_t>(8, 'j'));
  std::map<int64_t, int> seen;
  for (uint64_t index = 0; index < 35; ++index) {  // 18 documents of 16 tokens
    const data::Example example = data.training->example(index, 8);
    EXPECT_EQ(example.document, std::vector<int32_t>(8, 0));
    seen[example.tokens[0]] += 1;
  }
  EXPECT_EQ(seen.size(), 18);
  EXPECT_FALSE(seen.contains('j') || seen.contains('t'));
  EXPECT_EQ(data.checksums.at("letters").size(), 16);

  recipe.data.sources[0].validation_path = {recipe.data.sources[0].path};
  EXPECT_EQ(open(recipe).validation[0].examples.size(), 10);
}

TEST(DataSet, TheEndOfACorpusWithoutHeldOutDocumentsIsForValidation) {
  const TemporaryDirectory directory;
  Recipe recipe = corpus_recipe(prepare_letters(directory, 20, 15, 0));
  recipe.data.sources[0].validation_fraction = 0.25;
  const DataSet data = open(recipe);
  EXPECT_EQ(data.validation[0].examples.front().tokens[0], 'a' + 15);
  for (uint64_t index = 0; index < 100; ++index) EXPECT_LT(data.training->example(index, 8).tokens[0], 'a' + 15);
  recipe.data.sources[0].validation_fraction = 0;
  EXPECT_TRUE(open(recipe).validation.empty());
}

TEST(DataSet, ACorpusOfAnotherTokenizerIsRefused) {
  const TemporaryDirectory directory;
  const Recipe recipe = corpus_recipe(prepare_letters(directory, 3, 20, 0));
  class Other : public OtherTokenizer {
    std::string to_json() const override { return "{}"; }
  };
  const auto [code, text] = error_of([&] { open_data(recipe, Other()); });
  EXPECT_EQ(code, ExitCode::kInput);
  EXPECT_THAT(text, HasSubstr("was prepared with another tokenizer (byte, 257 tokens)"));
  EXPECT_THAT(text, HasSubstr("corpus/tokenizer.json\""));
}

TEST(DataSet, ATextMayHaveFilesForValidation) {
  const TemporaryDirectory directory;
  Recipe recipe = text_recipe(directory.write("text", counting_text(400)));
  recipe.data.sources[0].validation_files = {directory.write("other", std::string(30, 'v'))};
  recipe.data.sources[0].sampling = "sequential";
  const DataSet data = open(recipe);
  EXPECT_EQ(data.validation.at(0).examples.at(0).tokens, std::vector<int64_t>(8, 'v'));
  std::set<std::vector<int64_t>> seen;
  for (uint64_t index = 0; index < 49; ++index) seen.insert(data.training->example(index, 8).tokens);
  EXPECT_EQ(seen.size(), 25);  // the text repeats itself
}

TEST(Batch, HoldsTheExamplesRowByRow) {
  const Batch batch =
      make_batch({{.tokens = {1, 2}, .targets = {2, data::kIgnore}}, {.tokens = {3, 4}, .targets = {4, 5}}});
  EXPECT_TRUE(at::equal(batch.tokens_BT, at::tensor({1, 2, 3, 4}, at::kLong).view({2, 2})));
  EXPECT_TRUE(at::equal(batch.targets_BT, at::tensor({2, -100, 4, 5}, at::kLong).view({2, 2})));
}

}  // namespace
}  // namespace tamis::train
