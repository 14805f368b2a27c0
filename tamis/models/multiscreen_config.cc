#include "tamis/models/multiscreen_config.h"

#include <array>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/models/config_reader.h"

namespace tamis::models {
namespace {

const std::vector<std::string> kKeys = {"model_type",        "psi",
                                        "vocab_size",        "hidden_size",
                                        "num_hidden_layers", "num_attention_heads",
                                        "key_dim",           "value_dim",
                                        "mipe_threshold",    "position",
                                        "tanh_norm",         "gate",
                                        "fixed_r",           "max_position_embeddings",
                                        "rope_theta",        "rope_factor"};
const std::array<std::string, 3> kPositions = {"mipe", "rope", "none"};

// Together they keep every product of sizes within 64 bits.
constexpr int64_t kMostVocabulary = int64_t{1} << 31;
constexpr int64_t kMostHidden = 1 << 20;
constexpr int64_t kMostLayers = 1 << 12;
constexpr int64_t kMostHeads = 1 << 12;
constexpr int64_t kMostWidth = 1 << 12;
constexpr int64_t kMostPositions = int64_t{1} << 40;

}  // namespace

MultiscreenConfig read_multiscreen_config(const nlohmann::json& json) {
  const ConfigReader reader(json, kKeys);
  std::optional<int64_t> psi, psi_squared;
  if (reader.has("psi")) {
    psi = reader.integer("psi", 1, 1 << 10);
    psi_squared = *psi * *psi;
  }
  MultiscreenConfig config;
  config.vocab_size = reader.integer("vocab_size", 1, kMostVocabulary);
  config.hidden_size = reader.integer("hidden_size", 1, kMostHidden, psi_squared);
  config.num_hidden_layers = reader.integer("num_hidden_layers", 1, kMostLayers, psi);
  config.num_attention_heads = reader.integer("num_attention_heads", 1, kMostHeads, psi);
  config.max_position_embeddings =
      reader.integer("max_position_embeddings", 1, kMostPositions, config.max_position_embeddings);
  config.key_dim = reader.integer("key_dim", 2, kMostWidth, config.key_dim);
  config.value_dim = reader.integer("value_dim", 1, kMostWidth, config.value_dim);
  config.mipe_threshold = reader.number("mipe_threshold", 0.0, 1e30, config.mipe_threshold);
  config.position = reader.choice("position", kPositions, config.position);
  config.rope_theta = reader.number("rope_theta", 0.0, 1e30, config.rope_theta);
  config.rope_factor = reader.number("rope_factor", 0.0, 1e30, config.rope_factor);
  if (config.position == "rope" && config.key_dim % 2 != 0) {
    fail(ExitCode::kUsage, "model: rotary embedding needs an even \"key_dim\", but it is {}", config.key_dim);
  }
  config.tanh_norm = reader.boolean("tanh_norm", config.tanh_norm);
  config.gate = reader.boolean("gate", config.gate);
  if (reader.has("fixed_r")) config.fixed_r = reader.number("fixed_r", 0.0, 1.0);
  return config;
}

nlohmann::json to_json(const MultiscreenConfig& config) {
  nlohmann::json json = {
      {"model_type", "multiscreen"},
      {"vocab_size", config.vocab_size},
      {"hidden_size", config.hidden_size},
      {"num_hidden_layers", config.num_hidden_layers},
      {"num_attention_heads", config.num_attention_heads},
      {"max_position_embeddings", config.max_position_embeddings},
      {"key_dim", config.key_dim},
      {"value_dim", config.value_dim},
      {"mipe_threshold", config.mipe_threshold},
      {"position", config.position},
      {"tanh_norm", config.tanh_norm},
      {"gate", config.gate},
  };
  if (config.position == "rope") {
    json["rope_theta"] = config.rope_theta;
    json["rope_factor"] = config.rope_factor;
  }
  if (config.fixed_r) json["fixed_r"] = *config.fixed_r;
  return json;
}

}  // namespace tamis::models
