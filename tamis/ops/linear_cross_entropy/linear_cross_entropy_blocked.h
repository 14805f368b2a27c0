#pragma once

#include "tamis/ops/linear_cross_entropy/linear_cross_entropy_cpu.h"

namespace tamis::ops {

/// The blocked form of run_head_pass: plain torch on any device and dtype (README.md, "On other devices"). The logits
/// of a bounded number of tokens exist at a time. Losses have the dtype of computations, float32 for half-precision
/// storage, whose weights exist once in float32.
HeadPassResult linear_cross_entropy_blocked(const HeadPass& pass);

}  // namespace tamis::ops
