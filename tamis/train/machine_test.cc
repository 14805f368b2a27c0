#include "tamis/train/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tamis/base/instruction_set.h"
#include "tamis/ops/matmul_backend.h"

namespace tamis::train {
namespace {

using ::testing::HasSubstr;

TEST(Machine, RestoresTheMatmulBackends) {
  const nlohmann::json own = describe_numerics();
  for (const ops::MatmulBackend backend : ops::matmul_backends(at::kFloat)) {
    nlohmann::json recorded = own;
    recorded["matmul"]["float32"] = to_string(backend);
    EXPECT_EQ(restore_numerics(recorded), "");
    EXPECT_EQ(ops::matmul_backend(at::kFloat), backend);
  }
  EXPECT_EQ(restore_numerics(own), "");
  EXPECT_EQ(describe_numerics(), own);
}

TEST(Machine, ReportsDifferencesFromTheRecordedMachine) {
  nlohmann::json recorded = describe_numerics();
  recorded["instruction_set"] = "avx10";
  recorded["matmul"]["float32"] = "abacus";
  const std::string text = restore_numerics(recorded);
  EXPECT_THAT(text, HasSubstr("the instruction set was avx10, is " + to_string(instruction_set())));
  EXPECT_THAT(text, HasSubstr("the matmul backend of float32 was abacus, is "));
  EXPECT_EQ(restore_numerics(nlohmann::json::object()), "") << "a checkpoint of an earlier version";
  EXPECT_THAT(restore_numerics({{"matmul", 3}}), HasSubstr("the instruction set was ")) << "damaged";
}

TEST(Machine, CallsBFloat16FastestOnlyWhereThereAreInstructionsForIt) {
  const bool units = instruction_set() >= InstructionSet::kAvx512Bf16;
  EXPECT_EQ(fastest_precision(at::kCPU), units ? "bfloat16" : "float32");
  EXPECT_EQ(describe_machine()["instruction_set"], to_string(instruction_set()));
}

}  // namespace
}  // namespace tamis::train
