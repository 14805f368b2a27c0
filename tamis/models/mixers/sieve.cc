// Sieve attention: strictly causal, without positions.

#include "tamis/models/mixers/attention_mixer.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/ops/sieve_attention/sieve_attention.h"

namespace tamis::models {

std::unique_ptr<Mixer> make_sieve(const ModelConfig& config, at::Device device) {
  const auto attend = [alpha = config.alpha](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                             const AttentionCall& call) {
    return ops::sieve_attention(q, k, v, {.alpha = alpha, .document = call.mixer.document});
  };
  const auto attend_token = [alpha = config.alpha](const ops::AttentionToken& token, int64_t, const AttentionWeights&) {
    ops::sieve_attention_token(token, alpha);
  };
  return std::make_unique<AttentionMixer>(config, AttentionKind{.strict = true}, attend, attend_token, device);
}

}  // namespace tamis::models
