#include "tamis/kernels/instruction_set.h"

#include <hwy/targets.h>

#include <optional>

#include "tamis/base/instruction_set.h"

namespace tamis::kernels {

bool restrict_targets() {
#if HWY_ARCH_X86
  // Highway numbers its targets from the newest to the oldest: those newer than T are the bits below it.
  if (max_instruction_set() == InstructionSet::kAvx2) hwy::DisableTargets(HWY_AVX2 - 1);
  if (max_instruction_set() == InstructionSet::kAvx512) hwy::DisableTargets(HWY_AVX3 - 1);
#elif HWY_ARCH_ARM_A64
  if (max_instruction_set() == InstructionSet::kNeon) hwy::DisableTargets(HWY_NEON - 1);
#endif
  return true;
}

}  // namespace tamis::kernels
