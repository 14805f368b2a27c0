// Softmax attention, full and of a sliding window, with Scalable-Softmax.

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>

#include "tamis/models/mixers/attention_mixer.h"
#include "tamis/models/mixers/mixers.h"
#include "tamis/models/mixers/ring_attention.h"
#include "tamis/ops/softmax_attention/softmax_attention.h"

namespace tamis::models {

using at::Tensor;

namespace {

/// Scalable-Softmax's factor of the scores of a query that sees this many keys.
float length_factor(const ModelConfig& config, const AttentionWeights& weights, int64_t head, int64_t keys) {
  if (config.ssmax == "none") return 1;
  const auto logarithm = static_cast<float>(std::log(std::max(static_cast<double>(keys), 1.0)));
  if (config.ssmax == "one") return logarithm;
  if (config.ssmax == "fixed") return static_cast<float>(*config.ssmax_scale) * logarithm;
  const float scaled = weights.log_scale.const_data_ptr<float>()[head] * logarithm;
  return config.learns_bias() ? scaled + weights.log_bias.const_data_ptr<float>()[head] : scaled;
}

std::unique_ptr<Mixer> make_softmax(const ModelConfig& config, std::optional<int64_t> window, at::Device device) {
  const bool strict = config.strict.value_or(false);
  const auto attend = [config, window, strict](const Tensor& q, const Tensor& k, const Tensor& v,
                                               const AttentionCall& call) {
    ops::SoftmaxAttentionOptions options{
        .window = window, .strict = strict, .key_start = call.key_start, .document = call.mixer.document};
    if (window && call.mixer.window) options.window = *call.mixer.window;
    const auto per_head = [&](double value) { return at::full({q.size(2)}, value, q.options().dtype(at::kFloat)); };
    if (config.learns_scale()) options.log_scale = call.weights.log_scale;
    if (config.learns_bias()) options.log_bias = call.weights.log_bias;
    if (config.ssmax == "position") options.position_scale = call.mixer.position_scale;
    if (config.ssmax == "one") options.log_scale = per_head(1);
    if (config.ssmax == "fixed") options.log_scale = per_head(*config.ssmax_scale);
    if (!window && call.mixer.context) return ring_attention(q, k, v, options, *call.mixer.context);
    return ops::softmax_attention(q, k, v, options);
  };
  const auto attend_token = [config](ops::AttentionToken token, int64_t head, const AttentionWeights& weights) {
    token.scale *= length_factor(config, weights, head, token.count);
    ops::softmax_attention_token(token);
  };
  const AttentionKind kind{.rotary = true, .scalable = true, .strict = strict, .ring = !window, .window = window};
  const bool fitted = config.ssmax == "position";  // p_n is extrapolated by the operator only
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
