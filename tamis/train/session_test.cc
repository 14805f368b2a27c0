#include "tamis/train/session.h"

#include <gtest/gtest.h>

#include "tamis/base/error.h"
#include "tamis/base/testing.h"

namespace tamis::train {
namespace {

using nlohmann::json;
using tamis::testing::error_of;

/// What a process says of its run, with `change`.
json process(const json& change = json::object()) {
  json result = {{"data", {{"plays", "12"}}}, {"recipe", {{"train", {{"lr", 0.5}, {"threads", 1}}}}}};
  result.merge_patch(change);
  return result;
}

std::string refusal(const json& change) {
  const auto [code, text] = error_of([&] { check_same_run({process(), process(), process(change)}); });
  EXPECT_EQ(code, ExitCode::kUsage);
  return text;
}

TEST(SameRun, IsRequiredOfAllProcesses) {
  check_same_run({process()});
  check_same_run({process(), process(), process()});
  check_same_run({process(), process({{"recipe", {{"train", {{"threads", 2}}}}}})});
  EXPECT_EQ(refusal({{"data", {{"plays", "13"}}}}),
            "process 2 reads other data than process 0: {\"plays\":\"13\"} and {\"plays\":\"12\"}");
  EXPECT_EQ(refusal({{"recipe", {{"train", {{"lr", 0.25}}}}}}),
            "process 2 has another recipe than process 0: train.lr is 0.25, not 0.5; start all with the same command");
  EXPECT_EQ(
      refusal({{"recipe", {{"train", {{"clip", 1}}}}}}),
      "process 2 has another recipe than process 0: train.clip is 1, not absent; start all with the same command");
}

}  // namespace
}  // namespace tamis::train
