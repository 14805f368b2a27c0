#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

#include "tamis/infer/options.h"

namespace tamis::infer {

/// Samples the token at `position` of a text. Deterministic: options (with the seed), logits and position determine the
/// token. O(N log N) for N logits unless greedy. Throws ExitCode::kDiverged when a logit is NaN or infinite.
int64_t sample(std::span<const float> logits_N, const SamplingOptions& options, uint64_t position);

/// The same for a float32 tensor of any device. Of another device's logits only what is needed is copied to the host,
/// at once: the token if it is greedy, the top_k candidates if there is such a limit, else all.
int64_t sample(const at::Tensor& logits_N, const SamplingOptions& options, uint64_t position);

}  // namespace tamis::infer
