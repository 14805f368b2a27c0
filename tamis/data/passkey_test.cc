#include "tamis/data/passkey.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/data/testing.h"

namespace tamis::data {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::span_of;
using testing::text_instance;

TEST(Passkey, HasTheFormOfThePaper) {
  const auto instance = text_instance("passkey", {.length = 400, .depth = 0.5});
  const std::string& key = instance.answers.at(0);
  EXPECT_EQ(instance.prompt,
            fmt::format("There is an important info hidden inside a lot of irrelevant text. Find it "
                        "and memorize them. I will quiz you about the important information there.\n"
                        "The grass is green. The sky is blue. The sun is yellow. Here we go.\n"
                        "The pass key is {}. Remember it. {} is the pass key.\n"
                        "There and back again. The grass is green. The sky is blue. The sun is yellow. Here "
                        "we\n"
                        "What is the pass key? The pass key is",
                        key, key));
  EXPECT_EQ(key.size(), 5u);
  EXPECT_EQ(span_of(instance), key);
  EXPECT_EQ(instance.depth, 0.5);
}

TEST(Passkey, DepthsReachBothEnds) {
  EXPECT_NE(text_instance("passkey", {.length = 600, .depth = 0.0}).prompt.find("there.\n\nThe pass key"),
            std::string::npos);
  EXPECT_NE(text_instance("passkey", {.length = 600, .depth = 1.0}).prompt.find("is the pass key.\n\nWhat"),
            std::string::npos);
  for (const double depth : {0.1, 0.3, 0.7, 0.9}) {
    const auto instance = text_instance("passkey", {.length = 20'000, .depth = depth});
    EXPECT_NEAR(static_cast<double>(instance.answer_spans[0].begin) / 20'000, depth, 0.01);
  }
}

TEST(Passkey, SolverReturnsAllCandidates) {
  const auto solve = testing::text_task("passkey").solve;
  EXPECT_THAT(solve("The pass key is 12345. Remember it. 54321 is the pass key.\nThe pass key is"),
              ElementsAre("12345", "54321"));
  EXPECT_THAT(solve("What is the pass key? The pass key is"), IsEmpty());
  EXPECT_THAT(solve(""), IsEmpty());
}

}  // namespace
}  // namespace tamis::data
