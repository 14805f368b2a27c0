#pragma once

#include <cstdint>
#include <span>

#include "tamis/infer/options.h"

namespace tamis::infer {

/// The token at `position` of a text: the same options, logits and position give the same token. Throws
/// ExitCode::kDiverged when a logit is NaN or infinite.
int64_t sample(std::span<const float> logits_N, const SamplingOptions& options, uint64_t position);

}  // namespace tamis::infer
