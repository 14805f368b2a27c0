#include "tamis/data/generate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/base/testing.h"
#include "tamis/data/registry.h"

namespace tamis::data {
namespace {

using tamis::testing::error_of;
using ::testing::HasSubstr;

std::vector<nlohmann::json> generated_lines(const std::string& task, const TaskRequest& request, int64_t count) {
  std::vector<nlohmann::json> lines;
  generate(find_task(task), request, count, [&](std::string_view line) {
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    lines.push_back(nlohmann::json::parse(line));
  });
  return lines;
}

TEST(Generate, TextTasksGivePromptAnswersAndSpans) {
  const auto lines = generated_lines("needle", {.length = 300, .depth = 0.25, .seed = 3}, 4);
  ASSERT_EQ(lines.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const auto& line = lines[i];
    EXPECT_EQ(line["task"], "needle");
    EXPECT_EQ(line["index"], i);
    EXPECT_EQ(line["seed"], 3);
    EXPECT_EQ(line["length"], 300);
    EXPECT_EQ(line["depth"], 0.25);
    const std::string prompt = line["prompt"];
    EXPECT_EQ(line["prompt_tokens"], prompt.size());
    const int64_t begin = line["answer_spans"][0][0], end = line["answer_spans"][0][1];
    EXPECT_EQ(prompt.substr(begin, end - begin), " " + line["answers"][0].get<std::string>() + ".");
    EXPECT_FALSE(line.contains("settings"));
  }
}

TEST(Generate, TokenTasksGiveIdsPositionsAndAnswers) {
  const auto lines = generated_lines("mqrar", {.length = 64, .settings = {{"keys", 4}}}, 2);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0]["settings"], nlohmann::json({{"keys", 4}, {"queries", 15}, {"vocab", 256}}));
  EXPECT_EQ(lines[0]["ids"].size(), 64u);
  EXPECT_EQ(lines[0]["prompt_tokens"], 64);
  EXPECT_EQ(lines[0]["answers"].size(), 15u);
  EXPECT_EQ(lines[0]["answer_positions"].size(), 15u);
  EXPECT_FALSE(lines[0].contains("prompt"));
  EXPECT_FALSE(lines[0].contains("depth"));
}

TEST(Generate, RefusesInstancesThatExceedMemory) {
  const auto [code, said] =
      error_of([] { generate(find_task("passkey"), {.length = int64_t{1} << 50}, 1, [](std::string_view) {}); });
  EXPECT_EQ(code, ExitCode::kRuntime);
  EXPECT_THAT(said, HasSubstr("use a smaller length"));
}

}  // namespace
}  // namespace tamis::data
