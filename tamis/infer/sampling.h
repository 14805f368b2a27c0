#pragma once

#include <cstdint>
#include <span>

#include "tamis/infer/options.h"

namespace tamis::infer {

/// Samples the token at `position` of a text. Deterministic: options (with the seed), logits and position determine the
/// token. O(N log N) for N logits unless greedy. Throws ExitCode::kDiverged when a logit is NaN or infinite.
int64_t sample(std::span<const float> logits_N, const SamplingOptions& options, uint64_t position);

}  // namespace tamis::infer
