#include "tamis/study/stored.h"

#include <gtest/gtest.h>

namespace tamis::study {
namespace {

using nlohmann::json;

TEST(StoredStudy, TakesHalfOfItsProcessorTimeOnTwoCoresWhereRunsHaveOneThread) {
  const json plain = {{"seconds", 100.0}, {"jobs", 4}};
  EXPECT_EQ(seconds_on_two_cores(plain), 100);  // of a version that did not store threads

  json study = {{"seconds", 100.0}, {"jobs", 4}, {"threads", {1}}, {"processor_seconds", 80.0}};
  EXPECT_EQ(seconds_on_two_cores(study), 40);
  study["processor_seconds"] = nullptr;  // a run was resumed
  EXPECT_EQ(seconds_on_two_cores(study), 50);
  for (const json& threads : {json::array({2}), json::array({1, 2}), json()}) {
    study["threads"] = threads;
    EXPECT_EQ(seconds_on_two_cores(study), 100);
  }
  study["threads"] = {1};
  study["jobs"] = 1;  // nothing runs beside it
  EXPECT_EQ(seconds_on_two_cores(study), 100);
}

TEST(StoredStudy, IsRepeatedByACommandThatTakesTheTimeOnTwoCores) {
  json study = {{"command", "tamis repro a"}, {"tier", "cpu"}, {"jobs", 4}, {"threads", {1}}};
  EXPECT_EQ(command_of(study), "tamis repro a --jobs 2");
  study["command"] = "tamis repro a --jobs 4";
  EXPECT_EQ(command_of(study), "tamis repro a --jobs 4");
  study["command"] = "tamis repro a";
  for (const auto& [key, other] :
       {std::pair<std::string, json>{"threads", {2}}, {"threads", {}}, {"jobs", 1}, {"tier", "gpu"}}) {
    json changed = study;
    changed[key] = other;
    EXPECT_EQ(command_of(changed), "tamis repro a") << key << " " << other;
  }
}

TEST(StoredStudies, CountSharedRunsOnce) {
  const auto study = [](const std::string& id, const std::string& recipe, const json& points, double seconds) {
    return json{{"id", id}, {"tier", "cpu"}, {"recipe", recipe}, {"points", points}, {"seconds", seconds}, {"jobs", 2}};
  };
  const auto point = [](const std::string& name, double seconds) { return json{{"name", name}, {"seconds", seconds}}; };
  const std::string shared = "[study]\nruns = \"runs/a\"\n";
  const json a = study("a", "", {point("plain", 10), point("other", 1)}, 11);
  const json b = study("b", shared, json::array({point("plain", 14)}), 14);
  EXPECT_EQ(seconds_of_all_runs({a, b}), 14 + 1);
  EXPECT_EQ(seconds_of_all_runs({a, study("b", "", json::array({point("plain", 14)}), 14)}), 11 + 14);
  EXPECT_EQ(seconds_of_all_runs({a, study("b", "[study]\ndir = \"runs/a\"\n", json::array({point("plain", 14)}), 14)}),
            14 + 1);

  json halved = b;
  halved["threads"] = json::array({1});
  EXPECT_EQ(seconds_of_all_runs({a, halved}), 10 + 1);  // 7 seconds, less than those of a

  json chosen = point("plain", 14);
  chosen["chosen"] = "train.lr 0.01";  // the run is another: its name has the rate
  EXPECT_EQ(seconds_of_all_runs({a, study("b", shared, json::array({chosen}), 14)}), 11 + 14);
}

TEST(StoredStudies, WithDamagedPointsCountAsFarAsTheyAreRead) {
  json study = {{"id", "a"}, {"tier", "cpu"}, {"recipe", "[study\n"}, {"seconds", 5.0}};
  study["points"] = {1, {{"name", 2}, {"seconds", "3"}}, {{"name", "plain"}, {"seconds", 5.0}}};
  EXPECT_EQ(seconds_of_all_runs(std::vector<json>{study}), 5);
}

}  // namespace
}  // namespace tamis::study
