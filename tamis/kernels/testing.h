#pragma once

// What the tests of kernels and operators share. Included by tests only; no torch.

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cstdint>

#include "tamis/kernels/instruction_set.h"

namespace tamis::kernels::testing {

/// Tests of kernels do not load the operators, which apply TAMIS_MAX_ISA otherwise.
inline const bool kTargetsRestricted = restrict_targets();

/// Makes Highway's dynamic dispatch pick one instruction set for its lifetime.
class ForceTarget {
 public:
  explicit ForceTarget(int64_t target) { force(target); }
  ~ForceTarget() { force(0); }
  ForceTarget(const ForceTarget&) = delete;
  ForceTarget& operator=(const ForceTarget&) = delete;

 private:
  static void force(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

/// Calls `check()` once for every instruction set that this build contains and this machine runs, and names it in
/// failures.
template <typename Check>
void for_each_target(const Check& check) {
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    const ForceTarget forced(target);
    check();
  }
}

}  // namespace tamis::kernels::testing
