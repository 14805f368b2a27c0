#include "tamis/base/instruction_set.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "tamis/kernels/testing.h"

namespace tamis::kernels {
namespace {

/// Highway's target for an instruction set; on Arm that of the only length of vectors that has kernels.
int64_t target_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBaseline:
      return HWY_STATIC_TARGET;
    case InstructionSet::kNeon:
      return HWY_NEON;
    case InstructionSet::kSve:
      return HWY_TARGETS & (HWY_SVE_256 | HWY_SVE2_128);
    case InstructionSet::kAvx2:
      return HWY_AVX2;
    case InstructionSet::kAvx512:
    case InstructionSet::kAvx512Bf16:
      return HWY_AVX3;
  }
  return 0;
}

/// Checkpoints record tamis::instruction_set(), because the bits of results depend on it.
TEST(Targets, AreThoseOfTheInstructionSet) {
  const int64_t expected = target_of(instruction_set());
  if ((HWY_TARGETS & expected) == 0) GTEST_SKIP() << "this build has no kernels for " << to_string(instruction_set());
  EXPECT_STREQ(hwy::TargetName(hwy::SupportedAndGeneratedTargets().front()), hwy::TargetName(expected));
}

}  // namespace
}  // namespace tamis::kernels
