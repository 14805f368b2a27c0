#include "tamis/data/abc_digits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "tamis/base/error.h"
#include "tamis/data/streams.h"

namespace tamis::data {
namespace {

using ::testing::HasSubstr;

/// The lines before the query.
std::vector<std::string> lines_of(const std::string& prompt) {
  std::vector<std::string> lines;
  size_t start = 0;
  for (size_t end; (end = prompt.find('\n', start)) != prompt.npos; start = end + 1) {
    lines.push_back(prompt.substr(start, end - start));
  }
  return lines;
}

/// Checks all properties that appendix M defines for an instance.
void expect_paper_form(const AbcDigitsInstance& instance, int64_t length, double depth) {
  const auto size = static_cast<int64_t>(instance.prompt.size());
  EXPECT_LE(size, length);
  EXPECT_GT(size, length - 9);
  EXPECT_EQ(instance.prompt.substr(size - 3), std::string("\n") + instance.letter + "=");

  const auto lines = lines_of(instance.prompt);
  ASSERT_EQ(instance.lines, static_cast<int64_t>(lines.size()) + 1);
  std::map<char, std::string> number_of;
  std::map<std::string, char> letter_of;
  std::map<char, int64_t> occurrences;
  for (const std::string& line : lines) {
    ASSERT_EQ(line.size(), 8u);
    ASSERT_TRUE(line[0] >= 'A' && line[0] <= 'Z') << line;
    ASSERT_EQ(line[1], '=');
    const std::string number = line.substr(2);
    ASSERT_EQ(number.find_first_not_of("0123456789"), number.npos) << line;
    ASSERT_NE(number[0], '0');
    ASSERT_EQ(number_of.try_emplace(line[0], number).first->second, number) << "one letter, one number";
    ASSERT_EQ(letter_of.try_emplace(number, line[0]).first->second, line[0]) << "one number, one letter";
    ++occurrences[line[0]];
  }
  EXPECT_EQ(number_of.size(), 26u);
  EXPECT_EQ(occurrences[instance.letter], 1);
  EXPECT_EQ(instance.target_line, static_cast<int64_t>(std::floor(static_cast<double>(instance.lines - 2) * depth)));
  EXPECT_EQ(lines[instance.target_line], std::string(1, instance.letter) + "=" + instance.answer);
  EXPECT_EQ(solve_abc_digits(instance.prompt), std::vector<std::string>{instance.answer});
}

TEST(AbcDigits, EveryInstanceHasOneAnswer) {
  int64_t checked = 0;
  for (const int64_t length : {236, 237, 244, 245, 256, 300, 512, 1024, 2048}) {
    for (const double depth : {0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0}) {
      for (uint64_t index = 0; index < 60; ++index, ++checked) {
        SCOPED_TRACE(fmt::format("length {}, depth {}, index {}", length, depth, index));
        ASSERT_NO_FATAL_FAILURE(expect_paper_form(abc_digits_instance(length, depth, 1, index), length, depth));
      }
    }
  }
  for (uint64_t index = 0; index < 10; ++index) {
    ASSERT_NO_FATAL_FAILURE(expect_paper_form(abc_digits_instance(131'072, 0.3, 1, index), 131'072, 0.3));
  }
  EXPECT_GT(checked, 3'000);
}

TEST(AbcDigits, TheShortestPromptHoldsEveryLetterOnce) {
  EXPECT_EQ(abc_digits_min_length(), 236);
  const auto instance = abc_digits_instance(236, 0.5, 3, 0);
  EXPECT_EQ(instance.prompt.size(), 236u);
  EXPECT_EQ(instance.lines, 27);
  EXPECT_EQ(instance.target_line, 12);
}

TEST(AbcDigits, RefusesImpossibleRequests) {
  const auto error_of = [](int64_t length, double depth) -> std::string {
    try {
      abc_digits_instance(length, depth, 0, 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of(235, 0.5), HasSubstr("the least is 236"));
  EXPECT_THAT(error_of(-1, 0.5), HasSubstr("the least is 236"));
  EXPECT_THAT(error_of(256, 1.5), HasSubstr("depth must be in 0..1, but is 1.5"));
  EXPECT_THAT(error_of(256, std::nan("")), HasSubstr("depth must be in 0..1"));
}

TEST(AbcDigits, InstancesAreReproducibleAndDistinct) {
  std::set<std::string> prompts;
  for (uint64_t index = 0; index < 500; ++index) {
    const auto instance = abc_digits_instance(256, 0.5, 7, index);
    EXPECT_EQ(instance.prompt, abc_digits_instance(256, 0.5, 7, index).prompt);
    prompts.insert(instance.prompt);
  }
  EXPECT_EQ(prompts.size(), 500u);
  EXPECT_NE(abc_digits_instance(256, 0.5, 7, 0).answer, abc_digits_instance(256, 0.5, 8, 0).answer);
  EXPECT_NE(abc_digits_instance(256, 0.5, 7, 0).answer, abc_digits_instance(256, 0.3, 7, 0).answer);
}

TEST(AbcDigits, LettersAndTargetsAreUniformAndFrequenciesHalve) {
  constexpr int64_t kInstances = 2'000;
  std::map<char, int64_t> asked;
  std::vector<double> by_rank(26, 0);
  for (uint64_t index = 0; index < kInstances; ++index) {
    const auto instance = abc_digits_instance(2048, 0.5, 11, index);
    ++asked[instance.letter];
    std::map<char, int64_t> occurrences;
    for (const auto& line : lines_of(instance.prompt)) ++occurrences[line[0]];
    std::vector<int64_t> sorted;
    for (const auto& [letter, count] : occurrences) sorted.push_back(count);
    std::sort(sorted.rbegin(), sorted.rend());
    for (size_t rank = 0; rank < sorted.size(); ++rank) by_rank[rank] += static_cast<double>(sorted[rank]) / kInstances;
  }
  EXPECT_EQ(asked.size(), 26u);
  for (const auto& [letter, count] : asked) EXPECT_NEAR(count, kInstances / 26.0, 50) << letter;  // 5.8 sigma
  // 227 lines: 26 fixed, 201 drawn; the most frequent letter gets 2^24 / (2^25 - 1) of them.
  EXPECT_NEAR(by_rank[0], 1 + 201 * 0.5, 1.0);
  EXPECT_NEAR(by_rank[1], 1 + 201 * 0.25, 1.0);
  EXPECT_NEAR(by_rank[2], 1 + 201 * 0.125, 1.0);
  EXPECT_NEAR(by_rank[25], 1, 1e-9);
}

TEST(AbcDigits, SolverReturnsAllCandidates) {
  EXPECT_EQ(solve_abc_digits("A=12\nB=34\nA=12\nB="), std::vector<std::string>{"34"});
  EXPECT_THAT(solve_abc_digits("A=12\nB=34\nA=56\nA="), ::testing::ElementsAre("12", "56"));
  EXPECT_THAT(solve_abc_digits("A=12\nB="), ::testing::IsEmpty());
  EXPECT_THAT(solve_abc_digits("B="), ::testing::IsEmpty());
  EXPECT_THAT(solve_abc_digits(""), ::testing::IsEmpty());
}

std::string text_of(const Example& example) {
  std::string text;
  for (const int64_t token : example.tokens) text += static_cast<char>(token);
  return text;
}

TEST(AbcDigitsSource, ExamplesAreConsistentBindings) {
  const AbcDigitsSource source({.seed = 5});
  for (const int64_t length : {27, 64, 128, 256, 257}) {
    for (uint64_t index = 0; index < 300; ++index) {
      SCOPED_TRACE(fmt::format("length {}, index {}", length, index));
      const Example example = source.example(index, length);
      ASSERT_EQ(static_cast<int64_t>(example.tokens.size()), length);
      ASSERT_EQ(static_cast<int64_t>(example.targets.size()), length);
      for (int64_t t = 0; t + 1 < length; ++t) ASSERT_EQ(example.targets[t], example.tokens[t + 1]);
      std::map<char, std::string> number_of;
      std::set<std::string> numbers;
      for (const std::string& line : lines_of(text_of(example))) {
        ASSERT_EQ(line[1], '=');
        const std::string number = line.substr(2);
        ASSERT_TRUE(number.size() >= 1 && number.size() <= 6 && number[0] != '0') << line;
        ASSERT_EQ(number_of.try_emplace(line[0], number).first->second, number);
        numbers.insert(number);
      }
      ASSERT_EQ(numbers.size(), number_of.size());
    }
  }
}

TEST(AbcDigitsSource, AccessIsRandomAndSeedsDiffer) {
  const AbcDigitsSource source({.seed = 5});
  const AbcDigitsSource other({.seed = 6});
  const Example late = source.example(1'000'000'007, 128);
  source.example(3, 64);
  EXPECT_EQ(source.example(1'000'000'007, 128).tokens, late.tokens);
  EXPECT_NE(other.example(1'000'000'007, 128).tokens, late.tokens);
  EXPECT_NE(source.example(0, 128).tokens, source.example(1, 128).tokens);
}

TEST(AbcDigitsSource, OptionsHaveTheirEffect) {
  const AbcDigitsSource narrow({.digits_min = 3,
                                .digits_max = 3,
                                .letters_min = 4,
                                .letters_max = 4,
                                .few_letters_max = 4,
                                .paper_form_share = 0});
  for (uint64_t index = 0; index < 100; ++index) {
    std::set<char> letters;
    for (const std::string& line : lines_of(text_of(narrow.example(index, 600)))) {
      ASSERT_EQ(line.size(), 5u);
      letters.insert(line[0]);
    }
    ASSERT_LE(letters.size(), 4u);
  }

  // Only the paper's form with 26 letters and six digits: the prompt contains all letters, and the answer follows it.
  const AbcDigitsSource paper({.digits_min = 6,
                               .digits_max = 6,
                               .letters_min = 26,
                               .letters_max = 26,
                               .few_letters_share = 0,
                               .few_letters_max = 26,
                               .paper_form_share = 1});
  for (uint64_t index = 0; index < 100; ++index) {
    const std::string text = text_of(paper.example(index, 256));
    const std::string prompt = text.substr(0, 27 * 9 + 2);  // 27 lines and the query
    ASSERT_EQ(solve_abc_digits(prompt).size(), 1u) << text;
    ASSERT_EQ(solve_abc_digits(prompt)[0], text.substr(27 * 9 + 2, 6)) << text;
  }
}

TEST(AbcDigitsSource, AnswersOnlyCountsDigitsShownBefore) {
  const AbcDigitsSource source({.seed = 9, .answers_only = true});
  int64_t counted = 0;
  for (uint64_t index = 0; index < 200; ++index) {
    const Example example = source.example(index, 128);
    const Example all = AbcDigitsSource({.seed = 9}).example(index, 128);
    ASSERT_EQ(example.tokens, all.tokens);
    const std::string text = text_of(example) + static_cast<char>(all.targets.back());
    for (int64_t t = 0; t < 128; ++t) {
      const size_t line = text.rfind('\n', t) == text.npos ? 0 : text.rfind('\n', t) + 1;
      const std::string binding = text.substr(line, 2);  // "L=" of the line that token t belongs to
      const bool digit = text[t + 1] >= '0' && text[t + 1] <= '9';
      const bool shown = ("\n" + text.substr(0, line)).find("\n" + binding) != text.npos;
      ASSERT_EQ(example.targets[t], digit && shown ? all.targets[t] : kIgnore) << text << t;
      counted += example.targets[t] != kIgnore;
    }
  }
  EXPECT_GT(counted, 200 * 20);
}

TEST(AbcDigitsSource, FirstDigitShareLeavesOutTheDigitsThatFollow) {
  const AbcDigitsSource source({.seed = 9, .answers_only = true, .first_digit_share = 1});
  const AbcDigitsSource some({.seed = 9, .answers_only = true, .first_digit_share = 0.3});
  int64_t counted = 0, shortened = 0;
  for (uint64_t index = 0; index < 200; ++index) {
    const Example example = source.example(index, 128);
    const Example all = AbcDigitsSource({.seed = 9, .answers_only = true}).example(index, 128);
    ASSERT_EQ(example.tokens, all.tokens);
    for (int64_t t = 0; t < 128; ++t) {
      ASSERT_EQ(example.targets[t], example.tokens[t] == '=' ? all.targets[t] : kIgnore);
      counted += example.targets[t] != kIgnore;
    }
    const auto targets = some.example(index, 128).targets;
    ASSERT_TRUE(targets == example.targets || targets == all.targets);
    shortened += targets != all.targets;
  }
  EXPECT_GT(counted, 200 * 5);
  EXPECT_GT(shortened, 200 * 0.3 * 0.5);
  EXPECT_LT(shortened, 200 * 0.3 * 1.5);
}

TEST(AbcDigitsSource, TrainingNeverShowsAnEvaluationInstance) {
  static_assert(kAbcDigitsTraining != kAbcDigitsEvaluation);
  const AbcDigitsSource source(
      {.seed = 0, .digits_min = 6, .letters_min = 26, .letters_max = 26, .few_letters_max = 26, .paper_form_share = 1});
  std::set<std::string> openings;  // two lines: 12 random digits
  for (uint64_t index = 0; index < 5'000; ++index) openings.insert(text_of(source.example(index, 256)).substr(0, 18));
  for (uint64_t index = 0; index < 5'000; ++index) {
    ASSERT_FALSE(openings.contains(abc_digits_instance(256, 0.5, 0, index).prompt.substr(0, 18)));
  }
}

TEST(AbcDigitsSource, RefusesBadOptions) {
  const auto error_of = [](const AbcDigitsOptions& options, int64_t length = 256) -> std::string {
    try {
      AbcDigitsSource(options).example(0, length);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(error_of({.digits_min = 0}), HasSubstr("digits_min and digits_max must be in 1..9"));
  EXPECT_THAT(error_of({.digits_min = 5, .digits_max = 4}), HasSubstr("in order, but are 5 and 4"));
  EXPECT_THAT(error_of({.letters_max = 27}), HasSubstr("2..26"));
  EXPECT_THAT(error_of({.few_letters_max = 1}), HasSubstr("few_letters_max"));
  EXPECT_THAT(error_of({.paper_form_share = 1.5}), HasSubstr("paper_form_share must be in 0..1, but is 1.5"));
  EXPECT_THAT(error_of({}, 26), HasSubstr("the least is 27"));
}

}  // namespace
}  // namespace tamis::data
