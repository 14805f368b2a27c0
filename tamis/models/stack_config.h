#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace tamis::models {

/// Sizes and variants of a stack of mixers and MLPs, as in config.json: "transformer" and "swax" differ in defaults.
struct StackConfig {
  std::string model_type;
  int64_t vocab_size = 0;                  // N
  int64_t hidden_size = 0;                 // D
  int64_t num_hidden_layers = 0;           // L
  int64_t num_attention_heads = 0;         // H; of screening too
  int64_t mlstm_heads = 0;                 // of mLSTM; default H
  std::string mlp = "swiglu";              // W_down (SiLU(W_gate n) * W_up n); or "gelu": W_down GELU(W_up n)
  int64_t intermediate_size = 0;           // of the MLP; default floor(8 D / 3), 4 D for "gelu"
  int64_t max_position_embeddings = 4096;  // T_train, tokens
  std::string pattern;                     // a letter per layer (mixer.h), repeated to L
  int64_t window = 128;                    // of sliding-window attention: keys, the query's own included
  std::string position = "rope";           // of softmax, sliding-window and entmax attention; or "none"
  double rope_theta = 10'000.0;            // base of the wavelengths
  double rope_factor = 1.0;                // position i counts as i / rope_factor
  bool qk_norm = false;                    // RMSNorm of queries and keys, per head, with weights
  /// Scalable-Softmax, scores times: "none"; "learned" s ln n; "one" ln n; "bias" s ln n + b; "fixed" ssmax_scale ln n;
  /// "position" s p_n + b with p_n learned.
  std::string ssmax = "none";
  std::optional<double>
      ssmax_scale;                  // of "fixed"; default 1 / mean of ln n over T_train. What is learned begins with it
  double alpha = 1.5;               // of entmax and Sieve
  bool tie_word_embeddings = true;  // the head is the embedding
  bool final_norm_weight = false;   // the final RMSNorm has a weight
  double norm_eps = 1e-6;
  int64_t key_dim = 16;           // of screening layers
  int64_t value_dim = 64;         // of screening layers
  double mipe_threshold = 256.0;  // of screening layers

  /// Scalable-Softmax's s and b are trained.
  bool learns_scale() const { return learns_bias() || ssmax == "learned"; }
  bool learns_bias() const { return ssmax == "bias" || ssmax == "position"; }
  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  char mixer_of(int64_t layer) const { return pattern[static_cast<size_t>(layer) % pattern.size()]; }
};

/// Throws ExitCode::kUsage with the key when one is unknown, missing, of the wrong type or out of range. Settings that
/// no mixer of the pattern has are checked and dropped: to_json does not give them.
StackConfig read_stack_config(const nlohmann::json& config);
nlohmann::json to_json(const StackConfig& config);

}  // namespace tamis::models
