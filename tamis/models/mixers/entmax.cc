// Attention with alpha-entmax instead of softmax.

#include "tamis/models/mixers/attention_mixer.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/ops/entmax_attention/entmax_attention.h"

namespace tamis::models {

std::unique_ptr<Mixer> make_entmax(const ModelConfig& config, at::Device device) {
  const bool strict = config.strict.value_or(false);
  const auto attend = [alpha = config.alpha, strict](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                                                     const AttentionCall& call) {
    return ops::entmax_attention(q, k, v, {.alpha = alpha, .strict = strict, .document = call.mixer.document});
  };
  const auto attend_token = [alpha = config.alpha](const ops::AttentionToken& token, int64_t, const AttentionWeights&) {
    ops::entmax_attention_token(token, alpha);
  };
  return std::make_unique<AttentionMixer>(config, AttentionKind{.rotary = true, .strict = strict}, attend, attend_token,
                                          device);
}

}  // namespace tamis::models
