#include "tamis/train/log.h"

#include <gtest/gtest.h>

#include <regex>

#include "tamis/base/testing.h"

namespace tamis::train {
namespace {

using tamis::testing::TemporaryDirectory;

/// The file without the UTC times of its records.
std::string without_times(const std::filesystem::path& file) {
  static const std::regex kTime(R"re(,?"time":"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")re");
  return std::regex_replace(read_file(file), kTime, "");
}

TEST(Log, AppendsOneLinePerRecord) {
  const TemporaryDirectory directory;
  Log log(directory.path() / "log.jsonl", 0);
  log.write({{"type", "train"}, {"step", 1}});
  log.write({{"type", "sample"}, {"step", 1}, {"text", "no \xff UTF-8"}});
  EXPECT_EQ(without_times(directory.path() / "log.jsonl"),
            "{\"step\":1,\"type\":\"train\"}\n{\"step\":1,\"text\":\"no \xef\xbf\xbd UTF-8\",\"type\":\"sample\"}\n");
}

TEST(Log, RecordsHaveTheWallClockTime) {
  const TemporaryDirectory directory;
  Log(directory.path() / "log.jsonl", 0).write({{"type", "train"}, {"step", 1}});
  const auto record = nlohmann::json::parse(read_file(directory.path() / "log.jsonl"));
  EXPECT_TRUE(std::regex_match(record.at("time").get<std::string>(), std::regex(R"(20\d\d-\d\d-\d\dT[\d:]{8}Z)")))
      << record;
}

TEST(Log, IsCutBackToTheStep) {
  const TemporaryDirectory directory;
  const auto path = directory.write("log.jsonl", "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"x\":1}\n{\"step\":3}\n");
  Log(path, 2).write({{"step", 3}, {"again", true}});
  EXPECT_EQ(without_times(path), "{\"step\":1}\n{\"step\":2}\n{\"step\":2,\"x\":1}\n{\"again\":true,\"step\":3}\n");
}

TEST(Log, UnfinishedAndDamagedLinesAreDropped) {
  const TemporaryDirectory directory;
  for (const char* end : {"{\"step\":2", "{\"st\n{\"step\":2}\n", "\n", "17\n", "{\"step\":\"2\"}\n"}) {
    const auto path = directory.write("log.jsonl", std::string("{\"step\":1}\n") + end);
    { const Log log(path, 9); }
    EXPECT_EQ(read_file(path), "{\"step\":1}\n");
  }
}

/// A run goes back to step 1 after steps 3 and 5, and has then come to step 6.
const char* const kRolledBack =
    "{\"step\":1}\n"
    "{\"step\":3,\"type\":\"non_finite\"}\n"
    "{\"left_out\":[3,5],\"step\":1,\"type\":\"rollback\"}\n"
    "{\"step\":2}\n{\"step\":6}\n";

TEST(Log, KeepsWhatTheRunKnowsOfNonFiniteSteps) {
  const TemporaryDirectory directory;
  const auto cut = [&](int64_t step, const NonFiniteSteps& known) {
    const auto path = directory.write("log.jsonl", kRolledBack);
    { const Log log(path, step, known); }
    return read_file(path);
  };
  const std::string all = kRolledBack, first = "{\"step\":1}\n";
  const NonFiniteSteps known{.steps = {3, 5}, .left_out = {{3, 5}}};
  EXPECT_EQ(cut(6, known), all);
  EXPECT_EQ(cut(1, known), all.substr(0, all.find("{\"step\":2}"))) << "goes back once more";
  EXPECT_EQ(cut(1, {}), first) << "resumes from a checkpoint before step 3, and comes to all of it again";
  EXPECT_EQ(cut(2, {}), first + "{\"step\":2}\n");
}

TEST(Log, KnowsTheStepsThatWereLeftOut) {
  const TemporaryDirectory directory;
  using Ranges = std::vector<NonFiniteSteps::Range>;
  EXPECT_EQ(read_left_out(directory.path() / "none.jsonl"), Ranges());
  const auto ranges = [&](const std::string& text) { return read_left_out(directory.write("log.jsonl", text)); };
  EXPECT_EQ(ranges(kRolledBack), (Ranges{{3, 5}}));
  EXPECT_EQ(ranges("{\"left_out\":[3,9],\"step\":6,\"type\":\"rollback\"}\n"), (Ranges{{7, 9}}))
      << "the checkpoint has the batches up to step 6";
  EXPECT_EQ(ranges("{\"left_out\":[3],\"step\":1,\"type\":\"rollback\"}\n"), Ranges());
}

}  // namespace
}  // namespace tamis::train
