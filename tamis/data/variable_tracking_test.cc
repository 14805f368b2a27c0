#include "tamis/data/variable_tracking.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tamis/data/task_text.h"
#include "tamis/data/testing.h"

namespace tamis::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::span_of;
using testing::text_instance;

constexpr std::string_view kOpening =
    "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n";
constexpr std::string_view kQuestion = "\nQuestion: Find all variables that are assigned the value ";

/// The text between the opening and the question of the example, or of the problem.
std::string context(const std::string& prompt, bool example) {
  const size_t begin = example ? 0 : prompt.rfind(kOpening);
  const size_t question = prompt.find(kQuestion, begin);
  return prompt.substr(begin + kOpening.size(), question - begin - kOpening.size());
}

/// The context without its assignments.
std::string without(std::string text, const std::vector<std::string>& assignments) {
  for (const std::string& assignment : assignments) {
    const size_t at = text.find(assignment);
    EXPECT_NE(at, text.npos) << assignment;
    if (at != text.npos) text.erase(at, assignment.size());
  }
  return text;
}

std::string noise_lines(int64_t count) {
  std::string text;
  for (int64_t i = 0; i < count; ++i) text += fmt::format("{}{}\n", i > 0 ? " " : "", kNoise);
  return text;
}

TEST(VariableTracking, HasThePromptOfTheBenchmark) {
  const auto instance = text_instance("variable_tracking", {.length = 4096});
  const std::string& prompt = instance.prompt;
  EXPECT_TRUE(prompt.starts_with(kOpening));
  const auto values = all_between(prompt, kQuestion, " in the text above. Answer:");
  ASSERT_EQ(values.size(), 2u);
  const auto& names = instance.answers;
  ASSERT_EQ(names.size(), 5u);
  for (const std::string& name : names) EXPECT_EQ(name.size(), 5u);

  std::vector<std::string> assignments = {fmt::format("VAR {} = {} ", names[0], values[1])};
  for (size_t i = 1; i < 5; ++i) assignments.push_back(fmt::format("VAR {} = VAR {}  ", names[i], names[i - 1]));
  const std::string left = without(context(prompt, false), assignments);
  EXPECT_EQ(left, noise_lines(static_cast<int64_t>((left.size() + 1) / (kNoise.size() + 2))));

  EXPECT_TRUE(prompt.ends_with(fmt::format(
      "{}{} in the text above. Answer: According to the chain(s) of variable assignment in the text above, 5 "
      "variables are assgined the value {}, they are:",
      kQuestion, values[1], values[1])));
}

TEST(VariableTracking, TheExampleComesFirstWithItsAnswer) {
  const auto instance = text_instance("variable_tracking", {.length = 4096}, 7);
  const std::string& prompt = instance.prompt;
  const auto said = all_between(prompt, "they are:  ", "\n\n\n\nMemorize and track");
  ASSERT_EQ(said.size(), 1u);
  ASSERT_EQ(said[0].size(), 5u * 3 + 4);
  const std::string value(all_between(prompt, kQuestion, " in the text")[0]);
  std::vector<std::string> assignments;
  for (size_t i = 0; i < 5; ++i) {
    const std::string name(said[0].substr(4 * i, 3));
    assignments.push_back(i == 0 ? fmt::format("VAR {} = {} ", name, value)
                                 : fmt::format("VAR {} = VAR {}  ", name, said[0].substr(4 * (i - 1), 3)));
  }
  EXPECT_EQ(without(context(prompt, true), assignments), noise_lines(10));
}

TEST(VariableTracking, AssignmentsComeInOrderAndTheSpansAreTheirNames) {
  for (uint64_t index = 0; index < 100; ++index) {
    const auto instance = text_instance("variable_tracking", {.length = 4096}, index);
    for (size_t i = 0; i < instance.answers.size(); ++i) {
      ASSERT_EQ(span_of(instance, i), instance.answers[i]);
      ASSERT_EQ(instance.prompt.substr(instance.answer_spans[i].begin - 4, 4), "VAR ");
      if (i > 0) {
        ASSERT_GT(instance.answer_spans[i].begin, instance.answer_spans[i - 1].begin);
      }
    }
  }
}

TEST(VariableTracking, OtherChainsHaveOtherAnswers) {
  for (uint64_t index = 0; index < 100; ++index) {
    const TaskRequest request = {.length = 6000, .settings = {{"chains", 3}, {"hops", 12}}};
    const auto instance = text_instance("variable_tracking", request, index);
    ASSERT_EQ(instance.answers.size(), 13u);
    auto answers = instance.answers;
    std::sort(answers.begin(), answers.end());
    ASSERT_EQ(testing::text_task("variable_tracking").solve(instance.prompt), answers);
  }
}

TEST(VariableTracking, EveryChainFitsIntoTheGeneratedBytes) {
  for (const int64_t hops : {1, 4, 12}) {
    const TaskRequest request = {.length = 6000, .settings = {{"hops", hops}}};
    const auto instance = text_instance("variable_tracking", request, 0);
    const TextTask& task = testing::text_task("variable_tracking");
    EXPECT_EQ(said_bytes(task, instance), std::max<int64_t>(30, 6 * (hops + 1)));
    EXPECT_EQ(task.score(right_answer(task, instance), instance.answers), 1);
  }
}

TEST(VariableTracking, SolverFollowsTheChains) {
  const auto solve = testing::text_task("variable_tracking").solve;
  const std::string problem = std::string(kOpening) + "VAR C = VAR B  x. VAR B = VAR A  VAR D = 2 y. VAR A = 1 z." +
                              std::string(kQuestion) + "1 in the text above. Answer:";
  EXPECT_THAT(solve(problem), ElementsAre("A", "B", "C"));
  EXPECT_THAT(solve("VAR A = 1"), IsEmpty());
  EXPECT_THAT(solve(""), IsEmpty());
}

}  // namespace
}  // namespace tamis::data
