#include "tamis/data/prompt_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tamis/base/error.h"
#include "tamis/base/testing.h"

namespace tamis::data {
namespace {

using tamis::testing::error_of;
using tamis::testing::TemporaryDirectory;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const std::unique_ptr<text::Tokenizer>& bytes() {
  static const auto tokenizer = text::make_byte_tokenizer();
  return tokenizer;
}

TEST(PromptSource, CountsOnlyAnswersAndTheirEnd) {
  const std::vector<PromptAnswer> pairs = {{"ab", "c"}, {"d", "ef"}};
  const PromptSource source("pairs", *bytes(), pairs, 8, 1);
  ASSERT_EQ(source.sequences(), 1u);
  const Example made = source.sequence(0);
  EXPECT_THAT(made.tokens, ElementsAre('a', 'b', 'c', 'd', 'e', 'f', 0, 0));
  EXPECT_THAT(made.targets, ElementsAre(kIgnore, 'c', 256, 'e', 'f', 256, kIgnore, kIgnore));
  EXPECT_THAT(made.document, ElementsAre(0, 0, 0, 1, 1, 1, 2, 2));
}

TEST(PromptSource, CutsLongPromptsAndLeavesOutLongAnswers) {
  const std::vector<PromptAnswer> pairs = {{"abcdef", "gh"}, {"a", "bcdef"}, {"", "xyz"}};
  const PromptSource source("pairs", *bytes(), pairs, 4, 1);
  EXPECT_EQ(source.cut_prompts(), 1);
  EXPECT_EQ(source.left_out(), 1);
  ASSERT_EQ(source.sequences(), 2u);
  EXPECT_THAT(source.sequence(0).tokens, ElementsAre('e', 'f', 'g', 'h'));
  EXPECT_THAT(source.sequence(0).targets, ElementsAre(kIgnore, 'g', 'h', 256));
  EXPECT_THAT(source.sequence(1).targets, ElementsAre('y', 'z', 256, kIgnore)) << "nothing predicts x";
}

TEST(PromptSource, AnEpochHasEverySequenceOnce) {
  std::vector<PromptAnswer> pairs;
  for (int i = 0; i < 50; ++i) pairs.push_back({std::string(1, static_cast<char>(i)), "12345"});
  const PromptSource source("pairs", *bytes(), pairs, 7, 3);
  ASSERT_EQ(source.examples_per_epoch(7), 50u);
  std::vector<int64_t> first, second;
  for (uint64_t i = 0; i < 50; ++i) {
    first.push_back(source.example(i, 7).tokens[0]);
    second.push_back(source.example(50 + i, 7).tokens[0]);
  }
  EXPECT_NE(first, second) << "another order";
  EXPECT_EQ(std::set(first.begin(), first.end()).size(), 50u);
  EXPECT_EQ(std::set(second.begin(), second.end()).size(), 50u);
}

TEST(PromptAnswers, ReadsJsonlWithTemplates) {
  const TemporaryDirectory directory;
  const auto file =
      directory.write("a.jsonl", "{\"q\": \"1+1\", \"a\": \"2\", \"n\": 5}\n\n{\"q\": \"2+2\", \"a\": \"4\"}\r\n");
  const auto read = read_prompt_answers({file.string()}, {.prompt = "{{{q}}} = ", .answer = "{a}!"});
  ASSERT_EQ(read.pairs.size(), 2u);
  EXPECT_EQ(read.pairs[0].prompt, "{1+1} = ");
  EXPECT_EQ(read.pairs[1].answer, "4!");
}

TEST(PromptAnswers, ReadsSquad) {
  const TemporaryDirectory directory;
  const auto file = directory.write("train.json", R"({"version": "2.0", "data": [{"title": "T", "paragraphs": [
    {"context": "Rome is old.", "qas": [
      {"id": "1", "question": "What is old?", "answers": [{"text": "Rome", "answer_start": 0}, {"text": "R"}]},
      {"id": "2", "question": "Who?", "answers": [], "is_impossible": true}]}]}]})");
  const auto read = read_prompt_answers({file.string()}, {});
  ASSERT_EQ(read.pairs.size(), 1u);
  EXPECT_EQ(read.pairs[0].prompt, "Rome is old.\n\nQuestion: What is old?\nAnswer:");
  EXPECT_EQ(read.pairs[0].answer, " Rome");
  EXPECT_EQ(read.without_answer, 1);
}

TEST(PromptAnswers, SaysThatThereIsNoPair) {
  const TemporaryDirectory directory;
  const auto error = [&](const std::string& name, const std::string& content) {
    const auto file = directory.write(name, content);
    return error_of([&] { read_prompt_answers({file.string()}, {}); });
  };
  EXPECT_EQ(error("a.jsonl", "\n").first, ExitCode::kInput);
  EXPECT_THAT(error("a.jsonl", "\n").second, HasSubstr("a.jsonl: expected prompts and answers, but there are none"));
  EXPECT_THAT(error("S.JSON", R"({"data": [{"paragraphs": [{"context": "c", "qas": [{"answers": []}]}]}]})").second,
              HasSubstr("S.JSON: expected prompts and answers, but there are none; questions without an answer: 1"));
  const auto [code, text] = error_of([] { PromptSource("pairs", *bytes(), {}, 8, 1); });
  EXPECT_EQ(code, ExitCode::kInput);
  EXPECT_EQ(text, "pairs: there is no pair of prompt and answer to learn from");
}

TEST(PromptAnswers, RefusesBadFilesWithTheirPlace) {
  const TemporaryDirectory directory;
  const auto error = [&](const std::string& name, const std::string& content, const PromptTemplates& templates = {}) {
    const auto file = directory.write(name, content);
    return error_of([&] { read_prompt_answers({file.string()}, templates); }).second;
  };
  EXPECT_THAT(error("a.jsonl", "{\"prompt\": \"a\"}\n"),
              HasSubstr("a.jsonl:1: expected an object with a text at \"answer\""));
  EXPECT_THAT(error("a.jsonl", "{\"prompt\": \"a\", \"answer\": \"\"}\n"), HasSubstr(":1: the answer is empty"));
  EXPECT_THAT(error("a.jsonl", "{\"prompt\": 3, \"answer\": \"b\"}\n"), HasSubstr("but it is 3"));
  EXPECT_THAT(error("a.jsonl", "[]\n"), HasSubstr(":1: expected an object"));
  EXPECT_THAT(error("a.jsonl", "{\"prompt\": \"a\", \"answer\": \"b\"}\n{\"pro"), HasSubstr("a.jsonl:2: is not JSON"));
  EXPECT_THAT(error("s.json", "{\"data\": [{}]}"), HasSubstr("data[0]: has no list \"paragraphs\""));
  EXPECT_THAT(
      error("s.json", R"({"data": [{"paragraphs": [{"context": "c", "qas": [{"answers": [{"text": "t"}]}]}]}]})"),
      HasSubstr("data[0].paragraphs[0].qas[0]: expected an object with a text at \"question\""));
  EXPECT_THAT(error("s.json", R"({"data": [{"paragraphs": [{"context": "c", "qas": [{"question": "q"}]}]}]})"),
              HasSubstr("qas[0]: has no list \"answers\""));
  EXPECT_THAT(error("a.jsonl", "{}", {.prompt = "{q", .answer = "{a}"}),
              HasSubstr("prompt: expected a text with fields"));
  EXPECT_THAT(error("a.jsonl", "{}", {.prompt = "q}", .answer = "{a}"}),
              HasSubstr("prompt: expected a text with fields"));
}

}  // namespace
}  // namespace tamis::data
