#include "tamis/data/task_source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tamis/base/testing.h"
#include "tamis/data/registry.h"

namespace tamis::data {
namespace {

using ::tamis::testing::error_of;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr uint64_t kSeed = 5;

class TaskSources : public ::testing::TestWithParam<Task> {
 protected:
  TaskSourceOptions options() const {
    const bool hidden_in_text = GetParam().haystack == HaystackUse::kRequired;
    return {.task = GetParam().name, .seed = kSeed, .haystack = hidden_in_text ? text_.string() : ""};
  }

  TaskSource source(int64_t length_min = 0, bool answers_only = true) const {
    TaskSourceOptions with = options();
    with.length_min = length_min;
    with.answers_only = answers_only;
    return TaskSource(with);
  }

  int64_t length() const { return source().min_length() + 300; }

 private:
  tamis::testing::TemporaryDirectory directory_;
  std::filesystem::path text_ = directory_.write("text.txt", "Call me Ishmael. Some years ago I went to sea. Why?\n");
};

std::string text_of_bytes(std::span<const int64_t> bytes) {
  std::string text;
  for (const int64_t byte : bytes) text += static_cast<char>(byte);
  return text;
}

std::vector<std::string> split(std::string_view text, std::string_view separator) {
  std::vector<std::string> parts;
  for (size_t end; (end = text.find(separator)) != text.npos; text.remove_prefix(end + separator.size())) {
    parts.emplace_back(text.substr(0, end));
  }
  parts.emplace_back(text);
  return parts;
}

size_t first_counted(const Example& example) {
  return std::ranges::find_if(example.targets, [](int64_t target) { return target != kIgnore; }) -
         example.targets.begin();
}

/// Number of positions up to the last one with a target.
size_t counted_end(const Example& example) {
  return example.targets.rend() -
         std::find_if(example.targets.rbegin(), example.targets.rend(), [](int64_t t) { return t != kIgnore; });
}

/// The targets are contiguous bytes up to a newline: they form a right answer, within the number of bytes to generate.
void expect_text_example(const TextTask& task, const Example& example) {
  const size_t first = first_counted(example), end = counted_end(example);
  const std::string said = text_of_bytes(std::span(example.targets).subspan(first, end - first));
  ASSERT_TRUE(said.starts_with(task.before_answers)) << said;
  ASSERT_TRUE(said.ends_with('\n')) << said;
  ASSERT_EQ(text_of_bytes(std::span(example.tokens).subspan(first + 1, end - first - 1)) + "\n", said);
  const std::string_view answers = std::string_view(said).substr(task.before_answers.size());
  auto shown = split(answers.substr(0, answers.size() - 1), task.between_answers);
  auto solved = task.solve(text_of_bytes(std::span(example.tokens).first(first + 1)));
  std::ranges::sort(shown);
  std::ranges::sort(solved);
  ASSERT_EQ(shown, solved);
  ASSERT_EQ(task.score(said, shown), 1);
}

void expect_token_example(const TokenTask& task, const Settings& settings, const Example& example) {
  for (size_t t = 0; t < example.tokens.size(); ++t) {
    const auto asked = task.solve(std::span(example.tokens).first(t + 1), settings);
    ASSERT_EQ(example.targets[t], asked.value_or(kIgnore)) << "after token " << t;
  }
}

TEST_P(TaskSources, TargetsFollowFromTheTokens) {
  const Task& task = GetParam();
  Settings settings;
  for (const Setting& setting : task.settings) settings[setting.name] = setting.value;
  const TaskSource whole = source(), some = source(/*length_min=*/1);
  for (uint64_t index = 0; index < 100; ++index) {
    SCOPED_TRACE(index);
    const Example example = (index % 2 == 0 ? whole : some).example(index, length());
    ASSERT_EQ(static_cast<int64_t>(example.tokens.size()), length());
    ASSERT_EQ(static_cast<int64_t>(example.targets.size()), length());
    ASSERT_LT(*std::ranges::max_element(example.tokens), whole.vocab_size());
    if (const auto* text = std::get_if<TextTask>(&task.kind)) {
      ASSERT_NO_FATAL_FAILURE(expect_text_example(*text, example));
    } else {
      ASSERT_NO_FATAL_FAILURE(expect_token_example(std::get<TokenTask>(task.kind), settings, example));
    }
  }
}

TEST_P(TaskSources, EveryTokenCountsUnlessOnlyAnswersDo) {
  const TaskSource answers = source(/*length_min=*/1), every = source(/*length_min=*/1, /*answers_only=*/false);
  for (uint64_t index = 0; index < 20; ++index) {
    const Example asked = answers.example(index, length()), all = every.example(index, length());
    ASSERT_EQ(asked.tokens, all.tokens);
    const size_t end = counted_end(all);
    for (size_t t = 0; t < end; ++t) {
      ASSERT_EQ(all.targets[t], asked.targets[t] != kIgnore ? asked.targets[t] : all.tokens[t + 1]) << t;
    }
    const size_t padding = std::min(end + 1, all.tokens.size());  // the last id may have no target
    EXPECT_THAT(std::vector(all.tokens.begin() + static_cast<int64_t>(padding), all.tokens.end()), Each(0));
  }
}

TEST_P(TaskSources, LengthsAreDrawnFromTheLeast) {
  const int64_t least = source().min_length();
  EXPECT_NO_THROW(source().example(0, least));
  std::set<size_t> ends;
  for (uint64_t index = 0; index < 100; ++index) {
    ends.insert(counted_end(source(least + 100, /*answers_only=*/false).example(index, length())));
  }
  EXPECT_GT(ends.size(), 1u);  // variable_tracking has lines of 90 bytes
  EXPECT_LE(*ends.rbegin(), static_cast<size_t>(length()));
}

TEST_P(TaskSources, ManyInstancesFollowEachOther) {
  TaskSourceOptions with = options();
  const TaskSource one = source();
  with.length = one.min_length() + 40;
  const TaskSource many(with);
  const int64_t length = 3 * with.length + 1;
  const Example first = one.example(7, with.length), all = many.example(7, length);
  ASSERT_EQ(static_cast<int64_t>(all.tokens.size()), length);
  const auto counted = [](const std::vector<int64_t>& targets) {
    return std::ranges::count_if(targets, [](int64_t target) { return target != kIgnore; });
  };
  const size_t begun = counted_end(first);  // an instance may be shorter than requested
  EXPECT_TRUE(std::equal(first.tokens.begin(), first.tokens.begin() + static_cast<int64_t>(begun), all.tokens.begin()));
  EXPECT_TRUE(
      std::equal(first.targets.begin(), first.targets.begin() + static_cast<int64_t>(begun), all.targets.begin()));
  EXPECT_GE(counted(all.targets), 3 * counted(first.targets) * 9 / 10);
  const std::span<const int64_t> rest = std::span(all.tokens).subspan(begun);
  const std::span<const int64_t> again = std::span(first.tokens).first(begun);
  EXPECT_EQ(std::search(rest.begin(), rest.end(), again.begin(), again.end()), rest.end()) << "others";
  with.length = length + 1;
  EXPECT_THAT(error_of([&] { TaskSource(with).example(0, length); }).second, HasSubstr("length must be at most the"));
}

TEST_P(TaskSources, ExamplesAreReproducibleAndDistinct) {
  TaskSourceOptions other = options();
  other.seed = kSeed + 1;
  const TaskSource one = source();
  std::set<std::vector<int64_t>> seen;
  for (uint64_t index = 0; index < 50; ++index) {
    const Example example = one.example(index, length());
    EXPECT_EQ(example.tokens, source().example(index, length()).tokens);
    EXPECT_EQ(example.targets, source().example(index, length()).targets);
    seen.insert(example.tokens);
  }
  EXPECT_EQ(seen.size(), 50u);
  EXPECT_FALSE(seen.contains(TaskSource(other).example(0, length()).tokens));
}

TEST_P(TaskSources, NeverDrawEvaluationInstances) {
  const TaskSource training = source();
  const std::string haystack = options().haystack;
  const auto text = haystack.empty() ? std::nullopt : std::optional<Haystack>(haystack);
  for (uint64_t index = 0; index < 20; ++index) {
    const Example example = training.example(index, length());
    const bool is_text = std::holds_alternative<TextTask>(GetParam().kind);
    const auto prompt = static_cast<int64_t>(first_counted(example)) + 1,
               end = static_cast<int64_t>(counted_end(example));
    const int64_t asked = is_text ? length() - (end - prompt) : length();
    const Instance instance =
        make_instance(GetParam(), {.length = asked, .seed = kSeed, .haystack = text ? &*text : nullptr}, index);
    if (const auto* made = std::get_if<TextInstance>(&instance)) {
      ASSERT_NE(made->prompt, text_of_bytes(std::span(example.tokens).first(prompt)));
    } else {
      ASSERT_NE(std::get<TokenInstance>(instance).ids, example.tokens);
    }
  }
}

TEST_P(TaskSources, RefuseImpossibleOptions) {
  const auto refused = [](const auto& work, const std::string& text) {
    const auto [code, said] = error_of(work);
    EXPECT_EQ(code, ExitCode::kUsage);
    EXPECT_THAT(said, HasSubstr(text));
  };
  const int64_t least = source().min_length();
  refused([&] { source().example(0, least - 1); },
          fmt::format("{}: sequences of {} tokens are too short; the least is {}", GetParam().name, least - 1, least));
  refused([&] { source(length() + 1).example(0, length()); },
          fmt::format("length_min must be at most the {} tokens of a sequence", length()));
  TaskSourceOptions unknown = options();
  unknown.settings["hats"] = 2;
  refused([&] { TaskSource{unknown}; }, GetParam().settings.empty() ? "takes no setting" : "unknown setting \"hats\"");
  TaskSourceOptions other = options();
  other.haystack = other.haystack.empty() ? "/nowhere" : "";
  if (GetParam().haystack == HaystackUse::kNone) refused([&] { TaskSource{other}; }, "takes no haystack");
  if (GetParam().haystack == HaystackUse::kRequired) refused([&] { TaskSource{other}; }, "haystack = \"FILE\"");
}

INSTANTIATE_TEST_SUITE_P(Tasks, TaskSources, ::testing::ValuesIn(tasks()),
                         [](const auto& info) { return info.param.name; });

TEST(TaskSource, SettingsChangeTheSequences) {
  const TaskSource source({.task = "mqar", .settings = {{"pairs", 2}, {"vocab", 16}}});
  EXPECT_EQ(source.vocab_size(), 16);
  EXPECT_EQ(source.min_length(), 8);
  const Example example = source.example(0, 12);
  EXPECT_LT(*std::ranges::max_element(example.tokens), 16);
  EXPECT_EQ(std::ranges::count(example.targets, kIgnore), 10);
}

}  // namespace
}  // namespace tamis::data
