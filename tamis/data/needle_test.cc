#include "tamis/data/needle.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tamis/base/testing.h"
#include "tamis/data/task_text.h"
#include "tamis/data/testing.h"

namespace tamis::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::span_of;
using testing::text_instance;

TEST(Needle, HasTheFormOfThePaper) {
  const auto instance = text_instance("needle", {.length = 256, .depth = 0.5});
  const auto cities = all_between(instance.prompt, "What is the special magic ", " number?");
  ASSERT_EQ(cities.size(), 1u);
  const std::string needle = fmt::format("The special magic {} number is: {}.", cities[0], instance.answers.at(0));
  const std::string question =
      fmt::format("\nWhat is the special magic {} number? The special magic {} number is:", cities[0], cities[0]);
  const size_t at = instance.prompt.find(needle);
  ASSERT_NE(at, std::string::npos);
  const std::string before = instance.prompt.substr(0, at), after = instance.prompt.substr(at + needle.size());
  EXPECT_TRUE(before.starts_with("The grass is green. The sky is blue. ")) << before;
  EXPECT_TRUE(before.ends_with(". ")) << before;
  EXPECT_TRUE(after.starts_with(" T") || after.starts_with(" H")) << after;
  EXPECT_TRUE(after.ends_with(question)) << after;
  EXPECT_EQ(instance.answers[0].size(), 7u);
}

TEST(Needle, TheSpanBeginsAfterTheColonAndEndsWithTheNeedle) {
  for (uint64_t index = 0; index < 50; ++index) {
    const auto instance = text_instance("needle", {.length = 512}, index);
    EXPECT_EQ(span_of(instance), fmt::format(" {}.", instance.answers[0]));
    EXPECT_EQ(instance.prompt[instance.answer_spans[0].begin - 1], ':');
  }
}

TEST(Needle, QuestionsCoverManyCities) {
  std::set<std::string> cities;
  for (uint64_t index = 0; index < 1'000; ++index) {
    const auto instance = text_instance("needle", {.length = 200}, index);
    cities.emplace(all_between(instance.prompt, "What is the special magic ", " number?")[0]);
  }
  EXPECT_EQ(cities.size(), 72u);
}

TEST(Needle, IsInsertedIntoATextAtItsDepth) {
  const tamis::testing::TemporaryDirectory directory;
  std::string text;
  for (int i = 0; i < 2'000; ++i) text += fmt::format("This is sentence {}{}. ", i, std::string(i % 40, 'x'));
  const Haystack haystack(directory.write("text.txt", text));
  for (const double depth : {0.0, 0.1, 0.5, 0.9, 1.0}) {
    const auto instance = text_instance("needle", {.length = 10'000, .depth = depth, .haystack = &haystack});
    EXPECT_GT(instance.prompt.size(), 10'000u - 64);
    EXPECT_EQ(instance.prompt.find("The special magic") == 0, depth == 0);
    EXPECT_NEAR(static_cast<double>(instance.answer_spans[0].begin) / 10'000, depth, 0.015);
  }
}

TEST(Needle, SolverReturnsAllCandidatesOfTheCity) {
  const auto solve = testing::text_task("needle").solve;
  const std::string question = "\nWhat is the special magic Oslo number? The special magic Oslo number is:";
  EXPECT_THAT(
      solve("The special magic Oslo number is: 12. The special magic Rome number is: 34. The special magic Oslo "
            "number is: 56." +
            question),
      ElementsAre("12", "56"));
  EXPECT_THAT(solve(question), IsEmpty());
  EXPECT_THAT(solve(""), IsEmpty());
}

}  // namespace
}  // namespace tamis::data
