#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

namespace tamis::models {

/// The settings of a model, as in config.json: an embedding, a pattern of layers and a head. `model_type` names a
/// preset, which fixes the defaults of the others: "multiscreen", "swax" or "transformer". In config.json of
/// "multiscreen", "position" is screening_position, and keys that it does not use are errors.
struct ModelConfig {
  std::string model_type;
  int64_t vocab_size = 0;                  // N
  int64_t hidden_size = 0;                 // D
  int64_t num_hidden_layers = 0;           // L
  int64_t num_attention_heads = 0;         // H, of attention and screening
  int64_t max_position_embeddings = 4096;  // T_train, tokens: longer windows are expanded on request

  std::string pattern;            // a letter per layer (mixer.h), repeated to L
  std::string norm = "rms";       // before mixers, MLPs and the head; or "none"
  std::string mlp = "swiglu";     // W_down (SiLU(W_gate n) * W_up n); "gelu": W_down GELU(W_up n); or "none"
  int64_t intermediate_size = 0;  // of the MLP; default floor(8 D / 3), 4 D for "gelu"
  /// "plain": x_0 = W_E[token]. "unit": x_0 = exp(s_E) Wbar[token] and logits = exp(s_F) norm(x) Wbar^T, with the
  /// rows of W_E scaled to unit length.
  std::string embedding = "plain";
  bool tie_word_embeddings = true;  // the head is the embedding; always so for "unit"
  bool final_norm_weight = false;   // the final RMSNorm has a weight
  double norm_eps = 1e-6;
  std::optional<double> logit_soft_cap;  // c: logits z become c tanh(z / c); unset: no cap

  // Attention.
  int64_t window = 128;           // of sliding-window attention: keys, the query's own included unless strict
  std::optional<bool> strict;     // a query does not see its own key; unset: the default of its mixer (mixers/)
  std::string position = "rope";  // of softmax, sliding-window and entmax attention; or "none"
  double rope_theta = 10'000.0;   // base of the wavelengths
  double rope_factor = 1.0;       // position i counts as i / rope_factor
  /// "llama3": rope_factor stretches long wavelengths alone (nn/rotary.h, Llama3Scaling).
  std::string rope_scaling = "linear";
  double rope_low_freq_factor = 1.0, rope_high_freq_factor = 4.0;  // of "llama3"
  int64_t rope_original_length = 8192;                             // of "llama3": tokens of the training before
  bool qk_norm = false;  // RMSNorm of queries and keys, per head, with weights
  /// Scalable-Softmax, scores times: "none"; "learned" s ln n; "one" ln n; "bias" s ln n + b; "fixed" ssmax_scale ln n;
  /// "position" s p_n + b with p_n learned.
  std::string ssmax = "none";
  /// Of "fixed"; default 1 / mean of ln n over T_train. A learned s starts from it.
  std::optional<double> ssmax_scale;
  double alpha = 1.5;  // of entmax and Sieve
  /// Of Sieve attention: "equations" of the paper, or its "algorithm1", which keeps keys within sieve_epsilon of the
  /// highest score (ops/sieve_algorithm1).
  std::string sieve = "equations";
  double sieve_epsilon = 1e-6;

  int64_t mlstm_heads = 0;  // default H

  // Screening.
  int64_t key_dim = 16;                     // K, at least 2
  int64_t value_dim = 64;                   // V
  double mipe_threshold = 256.0;            // w_th, tokens
  std::string screening_position = "mipe";  // or "rope": all of q and k, by the position alone; or "none"
  /// Positions from this on count modulo the window in MiPE, as in multiscreen-pytorch; unset: none do.
  std::optional<int64_t> mipe_wrap_boundary;
  bool tanh_norm = true;            // false: u = h
  bool gate = true;                 // false: no gate projection
  bool output_scale = true;         // each head's output is scaled by exp(s_O), learned
  std::optional<double> fixed_r;    // acceptance width in (0, 1]; unset: learned
  int64_t trim_power = 2;           // of Trim, 1 to 3; only the paper's 2 is fast
  std::string softmask = "cosine";  // or "linear", "none": 1 inside the window

  /// Of screening.
  bool has_paper_shapes() const { return trim_power == 2 && softmask == "cosine"; }
  /// Scalable-Softmax's s and b are trained.
  bool learns_scale() const { return learns_bias() || ssmax == "learned"; }
  bool learns_bias() const { return ssmax == "bias" || ssmax == "position"; }
  bool has_norms() const { return norm != "none"; }
  bool has_mlp() const { return mlp != "none"; }
  bool has_unit_embedding() const { return embedding == "unit"; }
  int64_t head_dim() const { return hidden_size / num_attention_heads; }
  int64_t key_width() const { return num_attention_heads * key_dim; }      // H K of screening
  int64_t value_width() const { return num_attention_heads * value_dim; }  // H V of screening
  char mixer_of(int64_t layer) const { return pattern[static_cast<size_t>(layer) % pattern.size()]; }
};

/// Reads a recipe's [model] table or a config.json; absent keys take the preset's defaults. A Multiscreen's recipe may
/// give `psi` for hidden_size = psi^2 and num_hidden_layers = num_attention_heads = psi instead of these, and calls
/// screening's `screening_position` just `position`.
///
/// Settings that nothing in the model uses are errors in a Multiscreen; the other presets check and drop them, so that
/// variants of one recipe can share a table.
/// Throws ExitCode::kUsage with the key when one is unknown, missing, of the wrong type or out of range.
ModelConfig read_model_config(const nlohmann::json& config);
/// Every key that the model uses, apart from those that the preset fixes.
nlohmann::json to_json(const ModelConfig& config);

/// The complete configuration in a config.json, which an earlier version or Hugging Face's tools may have written
/// (stored_config.h).
nlohmann::json complete_stored_config(const nlohmann::json& config);
/// All keys that read_model_config accepts.
std::span<const std::string> model_keys();

}  // namespace tamis::models
