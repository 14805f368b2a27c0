// Sieve attention: strictly causal unless the configuration says otherwise, without positions.

#include "tamis/models/mixers/attention_mixer.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/ops/sieve_algorithm1/sieve_algorithm1.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"

namespace tamis::models {
namespace {

/// The paper's Algorithm 1, which decodes single tokens as chunks.
std::unique_ptr<Mixer> make_sieve_algorithm1(const ModelConfig& config, bool strict, at::Device device) {
  const auto attend = [epsilon = config.sieve_epsilon, strict](const at::Tensor& q, const at::Tensor& k,
                                                               const at::Tensor& v, const AttentionCall& call) {
    return ops::sieve_algorithm1(q, k, v, {.epsilon = epsilon, .strict = strict, .document = call.mixer.document});
  };
  return std::make_unique<AttentionMixer>(config, AttentionKind{.strict = strict}, attend, AttendToken(), device);
}

}  // namespace

std::unique_ptr<Mixer> make_sieve(const ModelConfig& config, at::Device device) {
  const bool strict = config.strict.value_or(true);
  if (config.sieve == "algorithm1") return make_sieve_algorithm1(config, strict, device);
  const auto attend = [alpha = config.alpha, strict](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                     const AttentionCall& call) {
    return ops::sieve_attention(q, k, v, {.alpha = alpha, .strict = strict, .document = call.mixer.document});
  };
  const auto attend_token = [alpha = config.alpha](const ops::AttentionToken& token, int64_t, const AttentionWeights&) {
    ops::sieve_attention_token(token, alpha);
  };
  return std::make_unique<AttentionMixer>(config, AttentionKind{.strict = strict}, attend, attend_token, device);
}

}  // namespace tamis::models
