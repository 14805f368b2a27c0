#include "tamis/data/niah.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <regex>
#include <set>

#include "tamis/base/testing.h"
#include "tamis/data/task_text.h"
#include "tamis/data/testing.h"

namespace tamis::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::span_of;

class Niah : public ::testing::Test {
 protected:
  TextInstance instance(const std::string& task, int64_t length = 4096, uint64_t index = 0) const {
    const bool text = find_task(task).haystack == HaystackUse::kRequired;
    return testing::text_instance(task, {.length = length, .haystack = text ? &haystack_ : nullptr}, index);
  }

  std::string text() const {
    std::string text;
    for (int i = 0; i < 400; ++i) text += fmt::format("This is sentence number {} of a text. ", i);
    return text;
  }

 private:
  tamis::testing::TemporaryDirectory directory_;
  Haystack haystack_ = Haystack(directory_.write("text.txt", text()));
};

constexpr std::string_view kOne =
    "A special magic number is hidden within the following text. Make sure to memorize it. I will quiz you about the "
    "number afterwards.\n";
constexpr std::string_view kSome =
    "Some special magic numbers are hidden within the following text. Make sure to memorize it. I will quiz you about "
    "the numbers afterwards.\n";

std::string one_question(std::string_view kind, std::string_view key) {
  return fmt::format(
      "\nWhat is the special magic {} for {} mentioned in the provided text? The special magic {} for {} mentioned in "
      "the provided text is",
      kind, key, kind, key);
}

std::string key_of(const TextInstance& instance) {
  return std::string(all_between(instance.prompt, "? The special magic ", " mentioned")[0])
      .substr(std::string_view("number for ").size());
}

TEST_F(Niah, Single1IsOneNeedleAmongLinesOfNoise) {
  const auto made = instance("niah_single_1");
  const std::string key = key_of(made);
  const std::string needle = fmt::format("One of the special magic numbers for {} is: {}.\n", key, made.answers.at(0));
  std::string prompt = made.prompt;
  const size_t at = prompt.find(needle);
  ASSERT_NE(at, prompt.npos);
  prompt.erase(at, needle.size());
  ASSERT_TRUE(prompt.starts_with(kOne));
  prompt.erase(0, kOne.size());
  ASSERT_TRUE(prompt.ends_with(one_question("number", key))) << prompt;
  prompt.erase(prompt.size() - one_question("number", key).size());
  std::string lines(kNoise);
  while (lines.size() < prompt.size()) lines += "\n" + std::string(kNoise);
  EXPECT_EQ(prompt, lines);
  EXPECT_GT(made.prompt.size(), 4096u - kNoise.size() - 1);
}

TEST_F(Niah, Single2And3AreInsertedBetweenSentences) {
  for (const std::string task : {"niah_single_2", "niah_single_3"}) {
    const std::string kind = task == "niah_single_2" ? "number" : "uuid";
    for (uint64_t index = 0; index < 50; ++index) {
      const auto made = instance(task, 3000, index);
      const std::string key = made.prompt.substr(made.prompt.rfind(" for ") + 5);
      const std::string name = key.substr(0, key.find(' '));
      const std::string needle =
          fmt::format("One of the special magic {}s for {} is: {}.", kind, name, made.answers[0]);
      const size_t at = made.prompt.find(needle);
      ASSERT_NE(at, made.prompt.npos) << made.prompt;
      ASSERT_TRUE(made.prompt.ends_with(one_question(kind, name)));
      const std::string before = made.prompt.substr(0, at), after = made.prompt.substr(at + needle.size());
      ASSERT_TRUE(before.ends_with("text. ") || before.ends_with("afterwards.\n ") || after.starts_with(" \nWhat"))
          << before;
      ASSERT_TRUE(after.starts_with(" This") || after.starts_with(" \nWhat")) << after;
      ASSERT_GT(made.prompt.size(), 3000u - 12);
    }
  }
}

TEST_F(Niah, DepthsAreThe40OfTheBenchmark) {
  std::set<int64_t> depths;
  for (uint64_t index = 0; index < 800; ++index) {
    depths.insert(std::llround(1000 * *instance("niah_single_2", 20'000, index).depth));
  }
  EXPECT_EQ(depths.size(), 40u);
  EXPECT_EQ(*depths.begin(), 0);
  EXPECT_EQ(*depths.rbegin(), 1000);
}

TEST_F(Niah, Multikey1AsksForOneOfFour) {
  for (uint64_t index = 0; index < 50; ++index) {
    const auto made = instance("niah_multikey_1", 3000, index);
    ASSERT_TRUE(made.prompt.starts_with(kOne));
    const auto needles = all_between(made.prompt, "One of the special magic numbers for ", ".");
    ASSERT_EQ(needles.size(), 4u);
    ASSERT_EQ(std::set(needles.begin(), needles.end()).size(), 4u);
    ASSERT_EQ(made.answers.size(), 1u);
    ASSERT_EQ(made.depth, std::nullopt);
  }
}

TEST_F(Niah, Multikey2And3ConsistOfNeedles) {
  for (const std::string task : {"niah_multikey_2", "niah_multikey_3"}) {
    const std::string kind = task == "niah_multikey_2" ? "number" : "uuid";
    for (uint64_t index = 0; index < 20; ++index) {
      const auto made = instance(task, 4096, index);
      const size_t begin = made.prompt.find('\n') + 1;
      const std::string context = "\n" + made.prompt.substr(begin, made.prompt.find("\nWhat is") - begin) + "\n";
      const std::string opening = fmt::format("One of the special magic {}s for ", kind);
      int64_t lines = 0, of_the_key = 0;
      const std::string name = made.prompt.substr(made.prompt.rfind(" for ") + 5);
      for (const std::string_view line : all_between(context, "\n", "\n")) {
        ASSERT_TRUE(line.starts_with(opening)) << line;
        of_the_key += line.substr(opening.size()).starts_with(name.substr(0, name.find(' ')) + " is: ");
        ++lines;
      }
      ASSERT_EQ(of_the_key, 1);
      ASSERT_GT(lines, task == "niah_multikey_2" ? 45 : 30);
    }
  }
}

TEST_F(Niah, MultivalueAsksForAllNumbersOfAKey) {
  const auto made = instance("niah_multivalue");
  ASSERT_TRUE(made.prompt.starts_with(kSome));
  const std::string key(all_between(made.prompt, "\nWhat are all the special magic numbers for ", " mentioned")[0]);
  EXPECT_TRUE(made.prompt.ends_with(
      fmt::format("\nWhat are all the special magic numbers for {} mentioned in the provided text? The special magic "
                  "numbers for {} mentioned in the provided text are",
                  key, key)));
  ASSERT_EQ(made.answers.size(), 4u);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(span_of(made, i), fmt::format(" {}.", made.answers[i]));
  EXPECT_EQ(all_between(made.prompt, fmt::format("One of the special magic numbers for {} is: ", key), ".").size(), 4u);
}

TEST_F(Niah, MultiqueryAsksForFourKeysInOrder) {
  for (uint64_t index = 0; index < 50; ++index) {
    const auto made = instance("niah_multiquery", 3000, index);
    ASSERT_TRUE(made.prompt.starts_with(kSome));
    const std::string query(all_between(made.prompt, "\nWhat are all the special magic numbers for ", " mentioned")[0]);
    std::smatch keys;
    ASSERT_TRUE(std::regex_match(query, keys, std::regex("([a-z-]+), ([a-z-]+), ([a-z-]+), and ([a-z-]+)"))) << query;
    for (size_t i = 0; i < 4; ++i) {
      const std::string told = fmt::format("One of the special magic numbers for {} is: ", keys[i + 1].str());
      ASSERT_THAT(all_between(made.prompt, told, "."), ElementsAre(made.answers.at(i)));
    }
  }
}

TEST_F(Niah, UuidsAreOfVersion4) {
  for (uint64_t index = 0; index < 200; ++index) {
    const std::string uuid = instance("niah_single_3", 1000, index).answers.at(0);
    const std::regex form("[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}");
    ASSERT_TRUE(std::regex_match(uuid, form)) << uuid;
  }
}

TEST_F(Niah, SolverReturnsAllCandidatesOfTheKeys) {
  const auto solve = testing::text_task("niah_single_1").solve;
  const std::string text =
      "One of the special magic numbers for a-b is: 1. One of the special magic numbers for c-d is: 2. One of the "
      "special magic numbers for a-b is: 3. One of the special magic numbers for xa-b is: 4.";
  EXPECT_THAT(solve(text + "\nWhat is the special magic number for a-b mentioned in the provided text?"),
              ElementsAre("1", "3"));
  EXPECT_THAT(
      solve(text + "\nWhat are all the special magic numbers for c-d, and xa-b mentioned in the provided text?"),
      ElementsAre("2", "4"));
  EXPECT_THAT(solve(text), IsEmpty());
  EXPECT_THAT(solve(""), IsEmpty());
}

}  // namespace
}  // namespace tamis::data
