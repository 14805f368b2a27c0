// Properties of all tasks: an instance satisfies its request, and its prompt alone determines exactly its answers.

#include "tamis/data/registry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <set>

#include "tamis/base/error.h"
#include "tamis/base/testing.h"

namespace tamis::data {
namespace {

using ::tamis::testing::error_of;
using ::testing::HasSubstr;

constexpr std::string_view kText =
    "Call me Ishmael. Some years ago (never mind how long!) having little or no money in my purse, I thought I would "
    "sail about a little.\nWhenever it is a damp, drizzly \"November\" in my soul... I account it high time to get to "
    "sea. Why?  There is nothing surprising in this. If they but knew it, almost all men in their degree, some time or "
    "other, cherish very nearly the same feelings towards the ocean with me \xe2\x80\x93 caf\xc3\xa9 and all.\n";

class Registry : public ::testing::TestWithParam<Task> {
 protected:
  int64_t least() const { return GetParam().min_length(check_request(GetParam(), request(1 << 20)).settings); }

  TaskRequest request(int64_t length, std::optional<double> depth = std::nullopt) const {
    return {.length = length,
            .depth = depth,
            .seed = 5,
            .haystack = GetParam().haystack == HaystackUse::kRequired ? &haystack_ : nullptr};
  }

  std::vector<TaskRequest> requests() const {
    std::vector<TaskRequest> all;
    for (const int64_t length : {least(), least() + 1, least() + 17, least() + 300, GetParam().default_length}) {
      all.push_back(request(std::max(length, least())));
      if (!GetParam().takes_depth) continue;
      for (const double depth : {0.0, 0.1, 0.5, 1.0}) all.push_back(request(std::max(length, least()), depth));
    }
    return all;
  }

 private:
  tamis::testing::TemporaryDirectory directory_;
  Haystack haystack_ = Haystack(directory_.write("text.txt", std::string(kText)));
};

void expect_text(const TextTask& task, const TextInstance& instance, const TaskRequest& request) {
  ASSERT_LE(static_cast<int64_t>(instance.prompt.size()), request.length);
  std::vector<std::string> answers = instance.answers;
  std::sort(answers.begin(), answers.end());
  std::vector<std::string> solved = task.solve(instance.prompt);
  std::sort(solved.begin(), solved.end());
  ASSERT_EQ(solved, answers) << instance.prompt;
  ASSERT_EQ(instance.answer_spans.size(), instance.answers.size());
  std::set<int64_t> begins;
  for (size_t i = 0; i < instance.answers.size(); ++i) {
    const ByteSpan& span = instance.answer_spans[i];
    ASSERT_THAT(instance.prompt.substr(span.begin, span.end - span.begin), HasSubstr(instance.answers[i]));
    ASSERT_LE(span.end - span.begin, static_cast<int64_t>(instance.answers[i].size()) + 2);
    begins.insert(span.begin);
  }
  ASSERT_EQ(begins.size(), instance.answers.size());
  std::string said;
  for (const std::string& answer : instance.answers) said += (said.empty() ? "" : " ") + answer;
  ASSERT_EQ(task.score(said + "\n", instance.answers), 1);
  const std::string right = right_answer(task, instance);
  ASSERT_EQ(task.score(right, instance.answers), 1);
  ASSERT_EQ(task.score("I do not know.", instance.answers), 0);
}

void expect_tokens(const TokenTask& task, const TokenInstance& instance, const TaskRequest& request) {
  ASSERT_LE(static_cast<int64_t>(instance.ids.size()), request.length);
  ASSERT_EQ(instance.answers.size(), instance.answer_positions.size());
  ASSERT_GT(instance.answers.size(), 0u);
  for (const int64_t id : instance.ids) ASSERT_TRUE(id >= 0 && id < request.settings.at("vocab")) << id;
  size_t next = 0;
  for (size_t t = 0; t < instance.ids.size(); ++t) {
    const auto asked = task.solve(std::span(instance.ids).first(t + 1), request.settings);
    const bool expected = next < instance.answers.size() && instance.answer_positions[next] == static_cast<int64_t>(t);
    ASSERT_EQ(asked.has_value(), expected) << "after token " << t;
    if (expected) {
      ASSERT_EQ(*asked, instance.answers[next++]);
    }
  }
  ASSERT_EQ(next, instance.answers.size());
}

void expect_right(const Task& task, const TaskRequest& request, uint64_t index) {
  const Instance instance = make_instance(task, request, index);
  if (const auto* text = std::get_if<TextTask>(&task.kind)) {
    expect_text(*text, std::get<TextInstance>(instance), check_request(task, request));
  } else {
    expect_tokens(std::get<TokenTask>(task.kind), std::get<TokenInstance>(instance), check_request(task, request));
  }
}

/// Everything that is visible to a model.
std::string prompt_of(const Instance& instance) {
  if (const auto* text = std::get_if<TextInstance>(&instance)) return text->prompt;
  std::string ids;
  for (const int64_t id : std::get<TokenInstance>(instance).ids) ids += std::to_string(id) + " ";
  return ids;
}

TEST_P(Registry, ThePromptAloneGivesTheAnswersAndNoOthers) {
  for (const TaskRequest& request : requests()) {
    for (uint64_t index = 0; index < 100; ++index) {
      SCOPED_TRACE(fmt::format("length {}, depth {}, index {}", request.length, request.depth.value_or(-1), index));
      ASSERT_NO_FATAL_FAILURE(expect_right(GetParam(), request, index));
    }
  }
}

TEST_P(Registry, LongPromptsGiveTheAnswersToo) {
  const Instance instance = make_instance(GetParam(), request(131'072), 0);
  if (const auto* text = std::get_if<TextTask>(&GetParam().kind)) {
    const auto& made = std::get<TextInstance>(instance);
    expect_text(*text, made, request(131'072));
    EXPECT_GT(made.prompt.size(), 131'072u - 128);
    return;
  }
  const auto& made = std::get<TokenInstance>(instance);
  EXPECT_GE(made.ids.size(), 131'071u);
  const Settings settings = check_request(GetParam(), request(131'072)).settings;
  for (size_t i = 0; i < made.answers.size(); i += 1 + made.answers.size() / 16) {
    const auto read = std::span(made.ids).first(made.answer_positions[i] + 1);
    EXPECT_EQ(std::get<TokenTask>(GetParam().kind).solve(read, settings), made.answers[i]);
  }
}

TEST_P(Registry, InstancesAreReproducibleAndDistinct) {
  std::set<std::string> prompts;
  const TaskRequest one = request(GetParam().default_length);
  for (uint64_t index = 0; index < 200; ++index) {
    const std::string prompt = prompt_of(make_instance(GetParam(), one, index));
    ASSERT_EQ(prompt, prompt_of(make_instance(GetParam(), one, index)));
    prompts.insert(prompt);
  }
  EXPECT_EQ(prompts.size(), 200u);
  TaskRequest other = one;
  other.seed = one.seed + 1;
  EXPECT_FALSE(prompts.contains(prompt_of(make_instance(GetParam(), other, 0))));
}

TEST_P(Registry, DrawsDepthsWhenNoneIsGiven) {
  if (!GetParam().takes_depth) GTEST_SKIP() << "its positions are always random";
  std::vector<double> depths;
  for (uint64_t index = 0; index < 200; ++index) {
    depths.push_back(
        *std::get<TextInstance>(make_instance(GetParam(), request(GetParam().default_length), index)).depth);
  }
  EXPECT_LT(*std::min_element(depths.begin(), depths.end()), 0.1);
  EXPECT_GT(*std::max_element(depths.begin(), depths.end()), 0.9);
}

TEST_P(Registry, RefusesImpossibleRequests) {
  const Task& task = GetParam();
  const auto refused = [&](TaskRequest asked, const std::string& text) {
    const auto [code, said] = error_of([&] { make_instance(task, asked, 0); });
    EXPECT_EQ(code, ExitCode::kUsage);
    EXPECT_THAT(said, ::testing::StartsWith(task.name + ": "));
    EXPECT_THAT(said, HasSubstr(text));
    EXPECT_EQ(said.find('\n'), said.npos);
  };
  for (const int64_t length : {least() - 1, int64_t{0}, std::numeric_limits<int64_t>::min()}) {
    refused(request(length), fmt::format("the least is {}", least()));
  }
  for (const double depth : {-0.1, 1.1, std::numeric_limits<double>::quiet_NaN()}) {
    refused(request(least(), depth), task.takes_depth ? "depth must be in 0..1" : "takes no depth");
  }
  TaskRequest unknown = request(least());
  unknown.settings = {{"hats", 2}};
  refused(unknown, task.settings.empty() ? "takes no setting" : "unknown setting \"hats\"");
  for (const Setting& setting : task.settings) {
    TaskRequest wrong = request(1 << 20);
    wrong.settings = {{setting.name, setting.least - 1}};
    refused(wrong, fmt::format("{} must be in", setting.name));
  }
  TaskRequest other = request(least());
  const Haystack noise;
  other.haystack = other.haystack == nullptr ? &noise : nullptr;
  if (task.haystack == HaystackUse::kNone) refused(other, "takes no haystack");
  if (task.haystack == HaystackUse::kRequired) refused(other, "give a text file with --haystack FILE");
}

INSTANTIATE_TEST_SUITE_P(Tasks, Registry, ::testing::ValuesIn(tasks()),
                         [](const auto& info) { return info.param.name; });

TEST(FindTask, SuggestsTheClosestName) {
  EXPECT_EQ(find_task("passkey").name, "passkey");
  const auto [code, said] = error_of([] { find_task("paskey"); });
  EXPECT_EQ(code, ExitCode::kUsage);
  EXPECT_THAT(said, HasSubstr("unknown task \"paskey\"; did you mean \"passkey\"?"));
}

TEST(FindTask, NamesAreDifferentAndSorted) {
  EXPECT_EQ(std::ranges::adjacent_find(tasks(), std::greater_equal(), &Task::name), tasks().end());
}

}  // namespace
}  // namespace tamis::data
