#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "tamis/base/object_reader.h"
#include "tamis/models/model_config.h"

namespace tamis::models {

inline constexpr const char* kMultiscreen = "multiscreen";

inline bool is_multiscreen(const ModelConfig& config) {
  return config.model_type == kMultiscreen;
}

// Together they keep every product of sizes within 64 bits.
inline constexpr double kMostVocabulary = int64_t{1} << 31;
inline constexpr double kMostHidden = 1 << 20;
inline constexpr double kMostInner = 1 << 23;
inline constexpr double kMostLayers = 1 << 12;
inline constexpr double kMostHeads = 1 << 12;
inline constexpr double kMostWidth = 1 << 12;
inline constexpr double kMostPositions = int64_t{1} << 40;

inline Allowed up_to(double most) {
  return {.least = 1, .most = most};
}

inline Allowed above_zero(double most = 1e30) {
  return {.least = 0.0, .most = most, .above_least = true};
}

/// 1 / mean of ln n over n = 1 .. length.
inline double mean_logarithm_inverse(int64_t length) {
  const auto T = static_cast<double>(length);
  return length < 2 ? 1.0 : T / std::lgamma(T + 1);
}

/// Calls `visit(key, value, allowed)` for each key of a model's configuration apart from `model_type` and `psi`.
/// Reading, writing and the list of known keys all use this single list. A size of 0 has no default; a default that
/// follows from other values is set before its visit.
template <typename Visitor>
void visit_fields(ModelConfig& config, Visitor&& visit) {
  visit("vocab_size", config.vocab_size, up_to(kMostVocabulary));
  visit("hidden_size", config.hidden_size, up_to(kMostHidden));
  visit("num_hidden_layers", config.num_hidden_layers, up_to(kMostLayers));
  visit("num_attention_heads", config.num_attention_heads, up_to(kMostHeads));
  visit("max_position_embeddings", config.max_position_embeddings, up_to(kMostPositions));

  visit("pattern", config.pattern, Allowed{});
  visit("norm", config.norm, Allowed{.choices = {"rms", "none"}});
  visit("mlp", config.mlp, Allowed{.choices = {"swiglu", "gelu", "none"}});
  if (config.intermediate_size == 0) {
    const int64_t width = config.mlp == "gelu" ? 4 * config.hidden_size : 8 * config.hidden_size / 3;
    config.intermediate_size = std::max<int64_t>(1, width);
  }
  visit("intermediate_size", config.intermediate_size, up_to(kMostInner));
  visit("embedding", config.embedding, Allowed{.choices = {"plain", "unit"}});
  visit("tie_word_embeddings", config.tie_word_embeddings, Allowed{});
  visit("final_norm_weight", config.final_norm_weight, Allowed{});
  visit("norm_eps", config.norm_eps, above_zero(1.0));
  visit("logit_soft_cap", config.logit_soft_cap, above_zero());

  visit("window", config.window, up_to(kMostPositions));
  visit("strict", config.strict, Allowed{});
  if (!is_multiscreen(config)) visit("position", config.position, Allowed{.choices = {"rope", "none"}});
  visit("rope_theta", config.rope_theta, above_zero());
  visit("rope_factor", config.rope_factor, above_zero());
  visit("rope_scaling", config.rope_scaling, Allowed{.choices = {"linear", "llama3"}});
  visit("rope_low_freq_factor", config.rope_low_freq_factor, above_zero());
  visit("rope_high_freq_factor", config.rope_high_freq_factor, above_zero());
  visit("rope_original_length", config.rope_original_length, up_to(kMostPositions));
  visit("qk_norm", config.qk_norm, Allowed{});
  visit("ssmax", config.ssmax, Allowed{.choices = {"none", "learned", "one", "bias", "fixed", "position"}});
  if (config.ssmax == "fixed" && !config.ssmax_scale) {
    config.ssmax_scale = mean_logarithm_inverse(config.max_position_embeddings);
  }
  visit("ssmax_scale", config.ssmax_scale, above_zero());
  visit("alpha", config.alpha, Allowed{.least = 1.0, .most = 2.0});
  visit("sieve", config.sieve, Allowed{.choices = {"equations", "algorithm1"}});
  visit("sieve_epsilon", config.sieve_epsilon, above_zero());
  if (config.mlstm_heads == 0) config.mlstm_heads = config.num_attention_heads;
  visit("mlstm_heads", config.mlstm_heads, up_to(kMostHeads));

  visit("key_dim", config.key_dim, Allowed{.least = 2, .most = kMostWidth});
  visit("value_dim", config.value_dim, up_to(kMostWidth));
  visit("mipe_threshold", config.mipe_threshold, above_zero());
  visit(is_multiscreen(config) ? "position" : "screening_position", config.screening_position,
        Allowed{.choices = {"mipe", "rope", "none"}});
  visit("mipe_wrap_boundary", config.mipe_wrap_boundary, up_to(kMostPositions));
  visit("tanh_norm", config.tanh_norm, Allowed{});
  visit("gate", config.gate, Allowed{});
  visit("output_scale", config.output_scale, Allowed{});
  visit("fixed_r", config.fixed_r, above_zero(1.0));
  visit("trim_power", config.trim_power, up_to(3));
  visit("softmask", config.softmask, Allowed{.choices = {"cosine", "linear", "none"}});
}

}  // namespace tamis::models
