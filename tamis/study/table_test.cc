#include "tamis/study/table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tamis/study/testing.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::Not;

TEST(Matches, NeedsEveryColumnWithItsValue) {
  const json row = {{"variant", "a"}, {"length", 32}, {"metric", "score"}};
  EXPECT_TRUE(matches(row, json::object()));
  EXPECT_TRUE(matches(row, {{"variant", "a"}, {"length", 32}}));
  EXPECT_TRUE(matches(row, {{"length", 32.0}}));
  EXPECT_FALSE(matches(row, {{"length", 33}}));
  EXPECT_FALSE(matches(row, {{"length", "32"}}));
  EXPECT_FALSE(matches(row, {{"depth", 32}}));
}

TEST(Matches, OfAListIsOneOfItsValues) {
  const json row = {{"variant", "a"}};
  EXPECT_TRUE(matches(row, {{"variant", {"b", "a"}}}));
  EXPECT_FALSE(matches(row, {{"variant", {"b", "c"}}}));
  EXPECT_FALSE(matches(row, {{"variant", json::array()}}));
}

TEST(ToCsv, HasAColumnForEveryKey) {
  const Rows rows = {{{"metric", "score"}, {"value", 0.5}, {"variant", "a"}, {"length", 32}},
                     {{"metric", "loss"}, {"value", json()}, {"seed", 1}}};
  EXPECT_EQ(to_csv(rows), "metric,value,length,seed,variant\nscore,0.5,32,,a\nloss,,,1,\n");
}

TEST(ToCsv, QuotesCommasQuotesAndLineEnds) {
  const Rows rows = {
      {{"metric", "m"}, {"value", 1}, {"a,b", "x\"y"}, {"c", "1\n2"}, {"d", "1\r2"}, {"e", "plain text"}}};
  EXPECT_EQ(to_csv(rows), "metric,value,\"a,b\",c,d,e\nm,1,\"x\"\"y\",\"1\n2\",\"1\r2\",plain text\n");
}

TEST(ToCsv, OfNoRowsIsAHeader) {
  EXPECT_EQ(to_csv({}), "metric,value\n");
}

TEST(ToCsv, KeepsEveryDigit) {
  EXPECT_EQ(to_csv({{{"metric", "m"}, {"value", 0.1 + 0.2}}}), "metric,value\nm,0.30000000000000004\n");
}

TEST(FromCsv, GivesTheRowsBack) {
  const Rows rows = {
      {{"metric", "m"}, {"value", 0.1 + 0.2}, {"variant", "4"}, {"seed", 3}, {"text", "a,\"b\"\n"}, {"on", true}},
      {{"metric", "m"}, {"value", json()}, {"variant", "b"}, {"size", "16"}, {"text", ""}}};
  EXPECT_EQ(from_csv(to_csv(rows)), rows);
  EXPECT_TRUE(from_csv(to_csv({})).empty());
}

TEST(FromCsv, ReadsPlainNumbersAndWords) {
  const Rows rows = from_csv("metric,value,length,on,size,variant\nm,1.5,512,true,XS,7\nm,,,,,a\n");
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0],
            json({{"metric", "m"}, {"value", 1.5}, {"length", 512}, {"on", true}, {"size", "XS"}, {"variant", "7"}}));
  EXPECT_EQ(rows[1], json({{"metric", "m"}, {"value", json()}, {"variant", "a"}}));
}

TEST(HigherIsBetter, KnowsLossesAndScores) {
  EXPECT_EQ(higher_is_better("score"), true);
  EXPECT_EQ(higher_is_better("validation_loss"), false);
  EXPECT_FALSE(higher_is_better("window").has_value());
}

TEST(Metrics, AreThoseOfTheTrainingAndOfEveryEvaluation) {
  StudyRecipe recipe;
  recipe.evaluations = {{.kind = "task", .task = {}}, {.kind = "costs", .task = {}}, {.kind = "loss", .task = {}}};
  const auto names = metrics(recipe);
  for (const char* name :
       {"parameters", "validation_loss", "diverged", "score", "exact_match", "state_bytes", "perplexity"}) {
    EXPECT_THAT(names, Contains(name));
  }
  EXPECT_THAT(names, Not(Contains("search_loss")));
  EXPECT_THAT(names, Not(Contains("needle_score")));
  recipe.choose = Choose{.key = "train.lr", .values = {0.1}};
  recipe.evaluations[0].task.needle_score = true;
  EXPECT_THAT(names, Not(Contains("text_loss_curve")));
  recipe.evaluations[2].loss.points = 8;
  EXPECT_THAT(metrics(recipe), Contains("text_loss_curve"));
  EXPECT_THAT(metrics(recipe), Contains("search_loss"));
  EXPECT_THAT(metrics(recipe), Contains("needle_score"));
}

TEST(Metrics, OfAFunctionAreItsOwn) {
  EXPECT_THAT(metrics(testing::read(testing::kFunction)), ElementsAre("tanh_norm"));
}

TEST(Metrics, OfAnUntrainedModelHaveNoTraining) {
  const auto names = metrics({.train = false});
  EXPECT_THAT(names, ElementsAre("parameters", "parameters_without_embedding"));
}

}  // namespace
}  // namespace tamis::study
