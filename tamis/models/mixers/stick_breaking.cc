// Stick-breaking attention: strictly causal, without positions.

#include "tamis/models/mixers/attention_mixer.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"

namespace tamis::models {

std::unique_ptr<Mixer> make_stick_breaking(const ModelConfig& config, at::Device device) {
  const auto attend = [](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const AttentionCall& call) {
    return std::get<0>(ops::stick_breaking_attention(q, k, v, {.document = call.mixer.document}));
  };
  const auto attend_token = [](const ops::AttentionToken& token, int64_t, const AttentionWeights&) {
    ops::stick_breaking_attention_token(token);
  };
  return std::make_unique<AttentionMixer>(config, AttentionKind{.strict = true}, attend, attend_token, device);
}

}  // namespace tamis::models
