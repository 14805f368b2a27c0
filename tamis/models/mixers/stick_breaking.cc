// Stick-breaking attention: strictly causal unless the configuration says otherwise, without positions.

#include "tamis/models/mixers/attention_mixer.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/ops/stick_breaking_attention/stick_breaking_attention.h"

namespace tamis::models {

std::unique_ptr<Mixer> make_stick_breaking(const ModelConfig& config, at::Device device) {
  const bool strict = config.strict.value_or(true);
  const auto attend = [strict](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                               const AttentionCall& call) {
    return std::get<0>(ops::stick_breaking_attention(q, k, v, {.strict = strict, .document = call.mixer.document}));
  };
  const auto attend_token = [](const ops::AttentionToken& token, int64_t, const AttentionWeights&) {
    ops::stick_breaking_attention_token(token);
  };
  return std::make_unique<AttentionMixer>(config, AttentionKind{.strict = strict}, attend, attend_token, device);
}

}  // namespace tamis::models
