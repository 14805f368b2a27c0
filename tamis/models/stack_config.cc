#include "tamis/models/stack_config.h"

#include <array>
#include <cmath>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/models/config_reader.h"
#include "tamis/models/mixer.h"

namespace tamis::models {
namespace {

const std::vector<std::string> kKeys = {"model_type",
                                        "vocab_size",
                                        "hidden_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "mlstm_heads",
                                        "mlp",
                                        "intermediate_size",
                                        "max_position_embeddings",
                                        "pattern",
                                        "window",
                                        "position",
                                        "rope_theta",
                                        "rope_factor",
                                        "qk_norm",
                                        "ssmax",
                                        "ssmax_scale",
                                        "alpha",
                                        "tie_word_embeddings",
                                        "final_norm_weight",
                                        "norm_eps",
                                        "key_dim",
                                        "value_dim",
                                        "mipe_threshold"};
const std::array<std::string, 2> kPositions = {"rope", "none"};
const std::array<std::string, 2> kMlps = {"swiglu", "gelu"};
const std::array<std::string, 6> kScales = {"none", "learned", "one", "bias", "fixed", "position"};

// Together they keep every product of sizes within 64 bits.
constexpr int64_t kMostVocabulary = int64_t{1} << 31;
constexpr int64_t kMostHidden = 1 << 20;
constexpr int64_t kMostInner = 1 << 23;
constexpr int64_t kMostLayers = 1 << 12;
constexpr int64_t kMostHeads = 1 << 12;
constexpr int64_t kMostWidth = 1 << 12;
constexpr int64_t kMostPositions = int64_t{1} << 40;

/// 1 / mean of ln n over n = 1 .. length.
double mean_logarithm_inverse(int64_t length) {
  const auto T = static_cast<double>(length);
  return length < 2 ? 1.0 : T / std::lgamma(T + 1);
}

std::string read_pattern(const ConfigReader& reader, const std::string& fallback) {
  const std::string pattern = reader.text("pattern", fallback);
  if (pattern.empty()) fail(ExitCode::kUsage, "model: \"pattern\" must have a letter for each layer, but is empty");
  for (const char letter : pattern) find_mixer(letter);
  return pattern;
}

/// Settings that no layer heeds: what only other mixers than those of the configuration have.
std::vector<std::string> unheeded(const StackConfig& config) {
  std::vector<std::string> settings;
  for (const MixerKind& kind : known_mixers()) {
    settings.insert(settings.end(), kind.settings.begin(), kind.settings.end());
  }
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    for (const std::string& heeded : find_mixer(config.mixer_of(l)).settings) std::erase(settings, heeded);
  }
  if (config.position != "rope") settings.insert(settings.end(), {"rope_theta", "rope_factor"});
  return settings;
}

}  // namespace

StackConfig read_stack_config(const nlohmann::json& json) {
  const ConfigReader reader(json, kKeys);
  StackConfig config;
  config.model_type = json.at("model_type").get<std::string>();
  const bool swax = config.model_type == "swax";
  config.vocab_size = reader.integer("vocab_size", 1, kMostVocabulary);
  config.hidden_size = reader.integer("hidden_size", 1, kMostHidden);
  config.num_hidden_layers = reader.integer("num_hidden_layers", 1, kMostLayers);
  config.num_attention_heads = reader.integer("num_attention_heads", 1, kMostHeads);
  config.mlstm_heads = reader.integer("mlstm_heads", 1, kMostHeads, config.num_attention_heads);
  config.mlp = reader.choice("mlp", kMlps, config.mlp);
  const int64_t width = config.mlp == "gelu" ? 4 * config.hidden_size : 8 * config.hidden_size / 3;
  config.intermediate_size = reader.integer("intermediate_size", 1, kMostInner, std::max<int64_t>(1, width));
  config.max_position_embeddings =
      reader.integer("max_position_embeddings", 1, kMostPositions, config.max_position_embeddings);
  config.pattern = read_pattern(reader, swax ? "wm" : "a");
  config.window = reader.integer("window", 1, kMostPositions, config.window);
  config.position = reader.choice("position", kPositions, config.position);
  config.rope_theta = reader.number("rope_theta", 0.0, 1e30, config.rope_theta);
  config.rope_factor = reader.number("rope_factor", 0.0, 1e30, config.rope_factor);
  config.qk_norm = reader.boolean("qk_norm", config.qk_norm);
  config.ssmax = reader.choice("ssmax", kScales, config.ssmax);
  const double scale = reader.number("ssmax_scale", 0.0, 1e30, mean_logarithm_inverse(config.max_position_embeddings));
  if (config.ssmax == "fixed" || (config.learns_scale() && reader.has("ssmax_scale"))) config.ssmax_scale = scale;
  config.alpha = reader.number("alpha", 0.0, 1e30, config.alpha);
  if (config.alpha < 1 || config.alpha > 2) {
    fail(ExitCode::kUsage, "model: \"alpha\" must be from 1 to 2, but is {}", config.alpha);
  }
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  config.final_norm_weight = reader.boolean("final_norm_weight", config.final_norm_weight);
  config.norm_eps = reader.number("norm_eps", 0.0, 1.0, config.norm_eps);
  config.key_dim = reader.integer("key_dim", 2, kMostWidth, config.key_dim);
  config.value_dim = reader.integer("value_dim", 1, kMostWidth, config.value_dim);
  config.mipe_threshold = reader.number("mipe_threshold", 0.0, 1e30, config.mipe_threshold);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const MixerKind& kind = find_mixer(config.mixer_of(l));
    if (kind.check != nullptr) kind.check(config);
  }
  // What may not count must not: Scalable-Softmax without a softmax would otherwise have parameters.
  nlohmann::json heeded = json;
  for (const std::string& key : unheeded(config)) heeded.erase(key);
  return heeded.size() == json.size() ? config : read_stack_config(heeded);
}

nlohmann::json to_json(const StackConfig& config) {
  nlohmann::json json = {{"model_type", config.model_type},
                         {"vocab_size", config.vocab_size},
                         {"hidden_size", config.hidden_size},
                         {"num_hidden_layers", config.num_hidden_layers},
                         {"num_attention_heads", config.num_attention_heads},
                         {"intermediate_size", config.intermediate_size},
                         {"max_position_embeddings", config.max_position_embeddings},
                         {"pattern", config.pattern},
                         {"window", config.window},
                         {"position", config.position},
                         {"rope_theta", config.rope_theta},
                         {"rope_factor", config.rope_factor},
                         {"qk_norm", config.qk_norm},
                         {"ssmax", config.ssmax},
                         {"alpha", config.alpha},
                         {"tie_word_embeddings", config.tie_word_embeddings},
                         {"final_norm_weight", config.final_norm_weight},
                         {"norm_eps", config.norm_eps},
                         {"key_dim", config.key_dim},
                         {"value_dim", config.value_dim},
                         {"mipe_threshold", config.mipe_threshold}};
  if (config.ssmax_scale) json["ssmax_scale"] = *config.ssmax_scale;
  if (config.mlstm_heads != config.num_attention_heads) json["mlstm_heads"] = config.mlstm_heads;
  if (config.mlp != "swiglu") json["mlp"] = config.mlp;
  for (const std::string& key : unheeded(config)) json.erase(key);
  return json;
}

}  // namespace tamis::models
