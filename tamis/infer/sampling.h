#pragma once

#include <cstdint>
#include <span>

namespace tamis::infer {

/// How the next token is drawn from logits z_n. In this order: p = softmax(z / temperature), the top_k likeliest, of
/// these (renormalised) the fewest likeliest that reach top_p, of these those with p >= min_p max(p), one draw.
struct SamplingOptions {
  double temperature = 0.0;  // 0 takes the likeliest token, the lowest id among equals
  int64_t top_k = 0;         // 0 keeps all
  double top_p = 1.0;        // in (0, 1]; 1 keeps all
  double min_p = 0.0;        // in [0, 1]; 0 keeps all
  uint64_t seed = 0;
};

/// Throws ExitCode::kUsage when an option is out of range.
void check_sampling(const SamplingOptions& options);

/// The token at `position` of a text: the same options, logits and position give the same token. Throws
/// ExitCode::kRuntime when a logit is NaN or infinite.
int64_t sample(std::span<const float> logits_N, const SamplingOptions& options, uint64_t position);

}  // namespace tamis::infer
