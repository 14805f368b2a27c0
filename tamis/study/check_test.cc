#include "tamis/study/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace tamis::study {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::IsEmpty;

const Columns kModel = {{"variant", "a"}};

json row(const std::string& metric, const json& value, const json& more = json::object()) {
  json row = {{"metric", metric}, {"value", value}, {"variant", "a"}};
  row.update(more);
  return row;
}

json of_seed(int64_t seed, const std::string& metric, const json& value, json more = json::object()) {
  more["seed"] = seed;
  return row(metric, value, more);
}

TEST(Check, ValuesOfASeedMayMoveAsFarAsSeedsDiffer) {
  const Rows stored = {of_seed(1, "validation_loss", 2.0), of_seed(2, "validation_loss", 2.1)};
  EXPECT_THAT(differences({of_seed(1, "validation_loss", 1.91)}, stored, kModel), IsEmpty());
  EXPECT_THAT(differences({of_seed(1, "validation_loss", 2.2)}, stored, kModel),
              ElementsAre("validation_loss 2.2, was 2"));
}

TEST(Check, SizesAreExact) {
  const Rows stored = {row("parameters", 114752), row("parameters", 114752)};  // by the runs of two seeds
  EXPECT_THAT(differences({row("parameters", 114752)}, stored, kModel), IsEmpty());
  EXPECT_THAT(differences({row("parameters", 114753)}, stored, kModel), ElementsAre("parameters 114753, was 114752"));
  const Rows function = {row("weight", 0.5)};
  EXPECT_THAT(differences({row("weight", 0.500004)}, function, kModel), IsEmpty());
  EXPECT_THAT(differences({row("weight", 0.50001)}, function, kModel), ElementsAre("weight 0.50001, was 0.5"));
}

TEST(Check, LengthsAreComparedOneByOneAndDepthsTogether) {
  const auto score = [](double value, int64_t length, double depth) {
    return of_seed(1, "score", value, {{"length", length}, {"depth", depth}});
  };
  const Rows stored = {score(1.0, 64, 0), score(0.5, 64, 1), score(0.5, 128, 0), score(0.5, 128, 1)};
  EXPECT_THAT(
      differences({score(0.5, 64, 0), score(1.0, 64, 1), score(0.5, 128, 0), score(0.5, 128, 1)}, stored, kModel),
      IsEmpty());
  EXPECT_THAT(
      differences({score(0.5, 64, 0), score(0.5, 64, 1), score(0.5, 128, 0), score(1.0, 128, 1)}, stored, kModel),
      ElementsAre("score (64) 0.5, was 0.75", "score (128) 0.75, was 0.5"));
}

TEST(Check, TrialsAreComparedTogetherWhateverTheirRankAndOutcome) {
  const auto trial = [](double value, int64_t rank, const char* outcome) {
    return of_seed(1, "needle_score_trial", value, {{"rank", rank}, {"outcome", outcome}});
  };
  const Rows stored = {trial(0.9, 0, "right"), trial(0.5, 1, "wrong")};
  EXPECT_THAT(differences({trial(0.9, 0, "right"), trial(0.51, 1, "right")}, stored, kModel), IsEmpty());
  EXPECT_THAT(differences({of_seed(1, "chosen_step", 100)}, {of_seed(1, "chosen_step", 200)}, kModel), IsEmpty());
}

TEST(Check, AValueThatIsNotFiniteDiffersEvenIfTheMeanDoesNot) {
  const auto score = [](const json& value, double depth) { return of_seed(1, "score", value, {{"depth", depth}}); };
  EXPECT_THAT(differences({score(0.5, 0), score(json(), 1)}, {score(0.5, 0), score(0.5, 1)}, kModel),
              ElementsAre("score 0.5 (1 of 2 finite), was 0.5"));
}

TEST(Check, OtherModelsAndMetricsThatAreNotStoredSayNothing) {
  const Rows stored = {of_seed(1, "validation_loss", 2.0), of_seed(1, "training_seconds", 7.0)};
  Rows now = {of_seed(1, "validation_loss", 2.0), of_seed(1, "training_seconds", 70.0),
              of_seed(1, "training_loss", 5.0, {{"step", 1}})};
  now.push_back({{"metric", "validation_loss"}, {"value", 9.0}, {"variant", "b"}, {"seed", 1}});
  EXPECT_THAT(differences(now, stored, kModel), IsEmpty());
}

TEST(Check, ValuesThatAreMissingDiffer) {
  const Rows stored = {of_seed(1, "score", 0.5, {{"length", 64}}), of_seed(1, "score", json(), {{"length", 128}}),
                       of_seed(1, "exact_match", 0.5, {{"length", 64}})};
  const Rows now = {of_seed(1, "score", 0.5, {{"length", 64}}), of_seed(1, "score", 0.5, {{"length", 128}}),
                    of_seed(1, "score", 0.5, {{"length", 256}})};
  EXPECT_THAT(differences(now, stored, kModel),
              ElementsAre("exact_match (64) none, was 0.5", "score (128) 0.5, was no finite number",
                          "score (256) 0.5, was none"));
}

TEST(Check, ARunThatDivergesDiffersEvenIfAnotherSeedDid) {
  const Rows stored = {of_seed(1, "diverged", 0), of_seed(1, "validation_loss", 2.0), of_seed(2, "diverged", 1)};
  EXPECT_THAT(differences({of_seed(1, "diverged", 1)}, stored, kModel),
              ElementsAre("diverged 1, was 0", "validation_loss none, was 2"));
}

}  // namespace
}  // namespace tamis::study
