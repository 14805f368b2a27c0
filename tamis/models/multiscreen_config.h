#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace tamis::models {

/// Sizes and ablations of a Multiscreen, as in config.json. In a recipe `psi` stands for hidden_size = psi^2 and
/// num_hidden_layers = num_attention_heads = psi, unless these are given too.
struct MultiscreenConfig {
  int64_t vocab_size = 0;                  // N
  int64_t hidden_size = 0;                 // D
  int64_t num_hidden_layers = 0;           // L
  int64_t num_attention_heads = 0;         // H
  int64_t max_position_embeddings = 4096;  // T_train, tokens: beyond it, windows are expanded on request
  int64_t key_dim = 16;                    // K, at least 2
  int64_t value_dim = 64;                  // V
  double mipe_threshold = 256.0;           // w_th, tokens
  std::string position = "mipe";           // or "rope": all of q and k, by the position alone; or "none"
  double rope_theta = 10'000.0;            // of "rope": base of the wavelengths
  double rope_factor = 1.0;                // of "rope": position i counts as i / factor
  bool tanh_norm = true;                   // false: u = h
  bool gate = true;                        // false: no gate projection
  std::optional<double> fixed_r;           // acceptance width in (0, 1]; unset: learned

  int64_t key_width() const { return num_attention_heads * key_dim; }      // H K
  int64_t value_width() const { return num_attention_heads * value_dim; }  // H V
  /// Rows of the fused projection: q, k, v and, unless ablated, g.
  int64_t projected_width() const { return 2 * key_width() + (gate ? 2 : 1) * value_width(); }
};

/// Throws ExitCode::kUsage with the key when one is unknown, missing, of the wrong type or out of range.
MultiscreenConfig read_multiscreen_config(const nlohmann::json& config);
/// Every key but psi.
nlohmann::json to_json(const MultiscreenConfig& config);

}  // namespace tamis::models
