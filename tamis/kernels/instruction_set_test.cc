#include "tamis/base/instruction_set.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include "tamis/kernels/testing.h"

namespace tamis::kernels {
namespace {

constexpr int64_t kSve = HWY_SVE_256 | HWY_SVE2_128;

/// Highway's targets for an instruction set. New versions of Highway have several for NEON.
int64_t targets_of(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBaseline:
      return HWY_STATIC_TARGET;
    case InstructionSet::kNeon:
      return ~kSve;
    case InstructionSet::kSve:
      return kSve;
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
  const int64_t expected = targets_of(instruction_set()), best = hwy::SupportedAndGeneratedTargets().front();
  if ((HWY_TARGETS & expected) == 0) GTEST_SKIP() << "this build has no kernels for " << to_string(instruction_set());
  EXPECT_NE(best & expected, 0) << to_string(instruction_set()) << ", but kernels for " << hwy::TargetName(best);
}

}  // namespace
}  // namespace tamis::kernels
