#include "tamis/study/stored.h"

#include <gtest/gtest.h>

namespace tamis::study {
namespace {

using nlohmann::json;

TEST(StoredStudy, TakesHalfOfItsProcessorTimeOnTwoCoresWhereRunsHaveOneThread) {
  const json plain = {{"seconds", 100.0}};
  EXPECT_EQ(seconds_on_two_cores(plain), 100);  // of a version that did not store threads

  json study = {{"seconds", 100.0}, {"threads", {1}}, {"processor_seconds", 80.0}};
  EXPECT_EQ(seconds_on_two_cores(study), 40);
  study["processor_seconds"] = nullptr;  // a run was resumed
  EXPECT_EQ(seconds_on_two_cores(study), 50);
  for (const json& threads : {json{2}, json{1, 2}, json()}) {
    study["threads"] = threads;
    EXPECT_EQ(seconds_on_two_cores(study), 100);
  }
}

TEST(StoredStudy, KnowsTheFolderOfItsRuns) {
  json study = {{"id", "a"}, {"tier", "cpu"}, {"recipe", ""}};
  EXPECT_EQ(folder_of_runs(study), "runs/a");
  study["recipe"] = "[study]\nruns = \"runs/b\"\n";
  EXPECT_EQ(folder_of_runs(study), "runs/b");
  study["recipe"] = "[study\n";
  EXPECT_EQ(folder_of_runs(study), "runs/a");
}

}  // namespace
}  // namespace tamis::study
