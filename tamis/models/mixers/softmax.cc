// Softmax attention, full and of a sliding window, with Scalable-Softmax.

#include <ATen/ATen.h>

#include "tamis/models/mixers/attention_mixer.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"

namespace tamis::models {

using at::Tensor;

namespace {

std::unique_ptr<Mixer> make_softmax(const StackConfig& config, std::optional<int64_t> window, at::Device device) {
  const auto attend = [&config, window](const Tensor& q, const Tensor& k, const Tensor& v, int64_t key_start,
                                        const MixerCall& call) {
    ops::SoftmaxAttentionOptions options{.window = window, .key_start = key_start};
    if (window && call.window) options.window = *call.window;
    const size_t norms = config.qk_norm ? 2 : 0;
    const auto per_head = [&](double value) { return at::full({q.size(2)}, value, q.options().dtype(at::kFloat)); };
    if (config.learns_scale()) options.log_scale = call[2 + norms];
    if (config.learns_bias()) options.log_bias = call[3 + norms];
    if (config.ssmax == "position") options.position_scale = call.position_scale;
    if (config.ssmax == "one") options.log_scale = per_head(1);
    if (config.ssmax == "fixed") options.log_scale = per_head(*config.ssmax_scale);
    return ops::softmax_attention(q, k, v, options);
  };
  const AttentionKind kind{.rotary = true, .scalable = true, .window = window};
  return std::make_unique<AttentionMixer>(config, kind, attend, device);
}

}  // namespace

std::unique_ptr<Mixer> make_full_attention(const StackConfig& config, at::Device device) {
  return make_softmax(config, std::nullopt, device);
}

std::unique_ptr<Mixer> make_sliding_window_attention(const StackConfig& config, at::Device device) {
  return make_softmax(config, config.window, device);
}

}  // namespace tamis::models
