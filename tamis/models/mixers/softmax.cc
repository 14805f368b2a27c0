// Softmax attention, full and of a sliding window, with Scalable-Softmax.

#include <ATen/ATen.h>

#include "tamis/models/mixers/attention_mixer.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/models/mixers/ring_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention_scale.h"

namespace tamis::models {

using at::Tensor;

namespace {

/// Scalable-Softmax multiplies the scores by s ln n + b, or s p_n + b.
struct Scale {
  Tensor s_H;  // where it is not learned

  explicit Scale(const ModelConfig& config, at::Device device) {
    const auto options = at::TensorOptions(device).dtype(at::kFloat);
    if (config.ssmax == "one") s_H = at::full({config.num_attention_heads}, 1.0, options);
    if (config.ssmax == "fixed") s_H = at::full({config.num_attention_heads}, *config.ssmax_scale, options);
  }

  /// [H]; undefined without Scalable-Softmax.
  const Tensor& s(const AttentionWeights& weights) const { return s_H.defined() ? s_H : weights.log_scale; }

  /// The factor of a head's query that sees n keys.
  float factor(const AttentionWeights& weights, int64_t head, int64_t n) const {
    if (!s(weights).defined()) return 1;
    const float b = weights.log_bias.defined() ? weights.log_bias.const_data_ptr<float>()[head] : 0;
    return ops::query_scale(s(weights).const_data_ptr<float>()[head], b, n);
  }
};

std::unique_ptr<Mixer> make_softmax(const ModelConfig& config, std::optional<int64_t> window, at::Device device) {
  const bool strict = config.strict.value_or(false);
  const bool fitted = config.ssmax == "position";  // p_n is extrapolated by the operator only
  const Scale scale(config, device);
  const auto attend = [scale, fitted, window, strict](const Tensor& q, const Tensor& k, const Tensor& v,
                                                      const AttentionCall& call) {
    ops::SoftmaxAttentionOptions options{
        .window = window, .strict = strict, .key_start = call.key_start, .document = call.mixer.document};
    if (window && call.mixer.window) options.window = *call.mixer.window;
    if (scale.s(call.weights).defined()) options.log_scale = scale.s(call.weights);
    if (call.weights.log_bias.defined()) options.log_bias = call.weights.log_bias;
    if (fitted) options.position_scale = call.mixer.position_scale;
    if (!window && call.mixer.context) return ring_attention(q, k, v, options, *call.mixer.context);
    return ops::softmax_attention(q, k, v, options);
  };
  const auto attend_token = [scale](ops::AttentionToken token, int64_t head, const AttentionWeights& weights) {
    token.scale *= scale.factor(weights, head, token.count);
    ops::softmax_attention_token(token);
  };
  const AttentionKind kind{.rotary = true, .scalable = true, .strict = strict, .ring = !window, .window = window};
  return std::make_unique<AttentionMixer>(config, kind, attend, fitted ? AttendToken() : attend_token, device);
}

}  // namespace

std::unique_ptr<Mixer> make_full_attention(const ModelConfig& config, at::Device device) {
  return make_softmax(config, std::nullopt, device);
}

std::unique_ptr<Mixer> make_sliding_window_attention(const ModelConfig& config, at::Device device) {
  return make_softmax(config, config.window, device);
}

}  // namespace tamis::models
