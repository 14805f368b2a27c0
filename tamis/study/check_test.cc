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

json row(const std::string& metric, const json& value, const json& more) {
  json row = {{"metric", metric}, {"value", value}, {"variant", "a"}};
  row.update(more);
  return row;
}

Rows stored() {
  return {row("validation_loss", 2.0, {{"seed", 1}}),
          row("validation_loss", 2.1, {{"seed", 2}}),
          row("parameters", 1000, json::object()),
          row("training_loss", 3.0, {{"seed", 1}, {"step", 1}}),
          row("training_seconds", 7.0, {{"seed", 1}}),
          {{"metric", "validation_loss"}, {"value", 9.0}, {"variant", "b"}, {"seed", 1}}};
}

std::vector<std::string> found(const Rows& now) {
  return differences(now, stored(), {{"variant", "a"}});
}

TEST(Check, ValuesOfASeedMayMoveAsFarAsSeedsDo) {
  EXPECT_THAT(found({row("validation_loss", 1.9, {{"seed", 1}})}), IsEmpty());
  EXPECT_THAT(found({row("validation_loss", 2.2, {{"seed", 1}})}), ElementsAre("validation_loss 2.2, was 2"));
}

TEST(Check, ValuesWithoutASeedAreExact) {
  EXPECT_THAT(found({row("parameters", 1000.5, json::object())}), IsEmpty());
  EXPECT_THAT(found({row("parameters", 1002, json::object())}), ElementsAre("parameters 1002, was 1000"));
}

TEST(Check, CellsCountByTheirMean) {
  const json seed = {{"seed", 1}};
  const Rows then = {row("score", 1.0, {{"seed", 1}, {"length", 64}}),
                     row("score", 0.5, {{"seed", 1}, {"length", 128}})};
  const Rows now = {row("score", 0.5, {{"seed", 1}, {"length", 64}}),
                    row("score", 1.0, {{"seed", 1}, {"length", 128}})};
  EXPECT_THAT(differences(now, then, {{"variant", "a"}}), IsEmpty());
  EXPECT_THAT(differences({row("score", 0.7, seed)}, then, {{"variant", "a"}}), ElementsAre("score 0.7, was 0.75"));
}

TEST(Check, TimesAndCurvesAreLeftOut) {
  EXPECT_THAT(found({row("training_seconds", 70.0, {{"seed", 1}}),
                     row("training_loss", 5.0, {{"seed", 1}, {"step", 1}}), row("loss_at", 5.0, {{"seed", 1}})}),
              IsEmpty());
}

TEST(Check, ARunThatDivergesIsAnother) {
  EXPECT_THAT(found({row("validation_loss", json(), {{"seed", 1}})}),
              ElementsAre("validation_loss no finite number, was 2"));
  const Rows diverged = {row("validation_loss", json(), {{"seed", 1}})};
  EXPECT_THAT(differences(diverged, diverged, {{"variant", "a"}}), IsEmpty());
  EXPECT_THAT(differences(stored(), diverged, {{"variant", "a"}}),
              ElementsAre("validation_loss 2, was no finite number", "validation_loss 2.1, was no finite number"));
}

}  // namespace
}  // namespace tamis::study
