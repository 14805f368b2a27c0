#include "tamis/models/model_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/models/config_reader.h"
#include "tamis/models/mixer.h"
#include "tamis/models/model.h"
#include "tamis/models/stored_config.h"

namespace tamis::models {
namespace {

using nlohmann::json;

constexpr const char* kMultiscreen = "multiscreen";

/// The settings that a model_type fixes as defaults.
struct Preset {
  std::string name;
  std::string pattern, norm, mlp, embedding;  // as in ModelConfig
};

const std::array kPresets = {
    Preset{kMultiscreen, "s", "none", "none", "unit"},
    Preset{"swax", "wm", "rms", "swiglu", "plain"},
    Preset{"transformer", "a", "rms", "swiglu", "plain"},
};

const std::vector<std::string> kKeys = {"model_type",
                                        "psi",
                                        "vocab_size",
                                        "hidden_size",
                                        "num_hidden_layers",
                                        "num_attention_heads",
                                        "max_position_embeddings",
                                        "pattern",
                                        "norm",
                                        "mlp",
                                        "intermediate_size",
                                        "embedding",
                                        "tie_word_embeddings",
                                        "final_norm_weight",
                                        "norm_eps",
                                        "logit_soft_cap",
                                        "window",
                                        "strict",
                                        "position",
                                        "rope_theta",
                                        "rope_factor",
                                        "rope_scaling",
                                        "rope_low_freq_factor",
                                        "rope_high_freq_factor",
                                        "rope_original_length",
                                        "qk_norm",
                                        "ssmax",
                                        "ssmax_scale",
                                        "alpha",
                                        "sieve",
                                        "sieve_epsilon",
                                        "mlstm_heads",
                                        "key_dim",
                                        "value_dim",
                                        "mipe_threshold",
                                        "screening_position",
                                        "mipe_wrap_boundary",
                                        "tanh_norm",
                                        "gate",
                                        "output_scale",
                                        "fixed_r"};
const std::array<std::string, 2> kNorms = {"rms", "none"};
const std::array<std::string, 3> kMlps = {"swiglu", "gelu", "none"};
const std::array<std::string, 2> kEmbeddings = {"plain", "unit"};
const std::array<std::string, 2> kPositions = {"rope", "none"};
const std::array<std::string, 2> kRopeScalings = {"linear", "llama3"};
const std::array<std::string, 2> kSieves = {"equations", "algorithm1"};
const std::array<std::string, 3> kScreeningPositions = {"mipe", "rope", "none"};
const std::array<std::string, 6> kScales = {"none", "learned", "one", "bias", "fixed", "position"};

// Together they keep every product of sizes within 64 bits.
constexpr int64_t kMostVocabulary = int64_t{1} << 31;
constexpr int64_t kMostHidden = 1 << 20;
constexpr int64_t kMostInner = 1 << 23;
constexpr int64_t kMostLayers = 1 << 12;
constexpr int64_t kMostHeads = 1 << 12;
constexpr int64_t kMostWidth = 1 << 12;
constexpr int64_t kMostPositions = int64_t{1} << 40;
constexpr int64_t kMostPsi = 1 << 10;

const Preset& find_preset(const json& config) {
  if (!config.is_object()) fail(ExitCode::kUsage, "model: expected a table of keys, but got {}", shown(config));
  const json type = config.value("model_type", json(kMultiscreen));
  if (!type.is_string()) fail(ExitCode::kUsage, "model: \"model_type\" must be a name, but is {}", shown(type));
  for (const Preset& preset : kPresets) {
    if (preset.name == type) return preset;
  }
  throw Error(ExitCode::kUsage, unknown_name("model_type", type.get<std::string>(), known_models()));
}

bool is_multiscreen(const ModelConfig& config) {
  return config.model_type == kMultiscreen;
}

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

/// The sizes that `psi` sets, if it is given.
struct PsiSizes {
  std::optional<int64_t> psi, squared;
};

PsiSizes read_psi(const ConfigReader& reader) {
  if (!reader.has("psi")) return {};
  for (const char* size : {"hidden_size", "num_hidden_layers", "num_attention_heads"}) {
    if (!reader.has(size)) continue;
    fail(ExitCode::kUsage,
         "model: \"psi\" sets hidden_size, num_hidden_layers and num_attention_heads, but \"{}\" is given too; leave "
         "out one of them",
         size);
  }
  const int64_t psi = reader.integer("psi", 1, kMostPsi);
  return {psi, psi * psi};
}

void read_sizes(const ConfigReader& reader, ModelConfig& config) {
  const PsiSizes sizes = read_psi(reader);
  config.vocab_size = reader.integer("vocab_size", 1, kMostVocabulary);
  config.hidden_size = reader.integer("hidden_size", 1, kMostHidden, sizes.squared);
  config.num_hidden_layers = reader.integer("num_hidden_layers", 1, kMostLayers, sizes.psi);
  config.num_attention_heads = reader.integer("num_attention_heads", 1, kMostHeads, sizes.psi);
  config.max_position_embeddings =
      reader.integer("max_position_embeddings", 1, kMostPositions, config.max_position_embeddings);
}

void read_layers(const ConfigReader& reader, const Preset& preset, ModelConfig& config) {
  config.pattern = read_pattern(reader, preset.pattern);
  config.norm = reader.choice("norm", kNorms, preset.norm);
  config.mlp = reader.choice("mlp", kMlps, preset.mlp);
  const int64_t width = config.mlp == "gelu" ? 4 * config.hidden_size : 8 * config.hidden_size / 3;
  config.intermediate_size = reader.integer("intermediate_size", 1, kMostInner, std::max<int64_t>(1, width));
  config.embedding = reader.choice("embedding", kEmbeddings, preset.embedding);
  config.tie_word_embeddings = reader.boolean("tie_word_embeddings", config.tie_word_embeddings);
  config.final_norm_weight = reader.boolean("final_norm_weight", config.final_norm_weight);
  config.norm_eps = reader.number("norm_eps", 0.0, 1.0, config.norm_eps);
  if (reader.has("logit_soft_cap")) config.logit_soft_cap = reader.number("logit_soft_cap", 0.0, 1e30);
}

void read_rope_scaling(const ConfigReader& reader, ModelConfig& config) {
  config.rope_scaling = reader.choice("rope_scaling", kRopeScalings, config.rope_scaling);
  config.rope_low_freq_factor = reader.number("rope_low_freq_factor", 0.0, 1e30, config.rope_low_freq_factor);
  config.rope_high_freq_factor = reader.number("rope_high_freq_factor", 0.0, 1e30, config.rope_high_freq_factor);
  config.rope_original_length = reader.integer("rope_original_length", 1, kMostPositions, config.rope_original_length);
  if (config.rope_scaling != "llama3" || config.rope_low_freq_factor < config.rope_high_freq_factor) return;
  fail(ExitCode::kUsage, "model: \"rope_high_freq_factor\" must be above \"rope_low_freq_factor\" {}, but is {}",
       config.rope_low_freq_factor, config.rope_high_freq_factor);
}

void read_attention(const ConfigReader& reader, ModelConfig& config) {
  config.window = reader.integer("window", 1, kMostPositions, config.window);
  if (reader.has("strict")) config.strict = reader.boolean("strict", false);
  if (!is_multiscreen(config)) config.position = reader.choice("position", kPositions, config.position);
  config.rope_theta = reader.number("rope_theta", 0.0, 1e30, config.rope_theta);
  config.rope_factor = reader.number("rope_factor", 0.0, 1e30, config.rope_factor);
  read_rope_scaling(reader, config);
  config.qk_norm = reader.boolean("qk_norm", config.qk_norm);
  config.ssmax = reader.choice("ssmax", kScales, config.ssmax);
  const double scale = reader.number("ssmax_scale", 0.0, 1e30, mean_logarithm_inverse(config.max_position_embeddings));
  if (config.ssmax == "fixed" || (config.learns_scale() && reader.has("ssmax_scale"))) config.ssmax_scale = scale;
  config.alpha = reader.number("alpha", 0.0, 1e30, config.alpha);
  if (config.alpha < 1 || config.alpha > 2) {
    fail(ExitCode::kUsage, "model: \"alpha\" must be from 1 to 2, but is {}", config.alpha);
  }
  config.sieve = reader.choice("sieve", kSieves, config.sieve);
  config.sieve_epsilon = reader.number("sieve_epsilon", 0.0, 1e30, config.sieve_epsilon);
  config.mlstm_heads = reader.integer("mlstm_heads", 1, kMostHeads, config.num_attention_heads);
}

void read_screening(const ConfigReader& reader, ModelConfig& config) {
  config.key_dim = reader.integer("key_dim", 2, kMostWidth, config.key_dim);
  config.value_dim = reader.integer("value_dim", 1, kMostWidth, config.value_dim);
  config.mipe_threshold = reader.number("mipe_threshold", 0.0, 1e30, config.mipe_threshold);
  config.screening_position = reader.choice(is_multiscreen(config) ? "position" : "screening_position",
                                            kScreeningPositions, config.screening_position);
  if (reader.has("mipe_wrap_boundary")) {
    config.mipe_wrap_boundary = reader.integer("mipe_wrap_boundary", 1, kMostPositions);
  }
  config.tanh_norm = reader.boolean("tanh_norm", config.tanh_norm);
  config.gate = reader.boolean("gate", config.gate);
  config.output_scale = reader.boolean("output_scale", config.output_scale);
  if (reader.has("fixed_r")) config.fixed_r = reader.number("fixed_r", 0.0, 1.0);
}

bool has_setting(const MixerKind& kind, const std::string& key) {
  return std::ranges::find(kind.settings, key) != kind.settings.end();
}

void check_strict(const ModelConfig& config, const MixerKind& kind) {
  if (!config.strict.value_or(false) || has_setting(kind, "strict")) return;
  fail(ExitCode::kUsage,
       "model: \"strict\" = true hides a token from itself in attention, but {} (letter {} of \"pattern\") always sees "
       "it; leave \"strict\" out or choose another pattern",
       kind.name, kind.letter);
}

/// Settings that nothing in the model uses: those of mixers that are not in the pattern, and of parts that it lacks.
std::set<std::string> unused_settings(const ModelConfig& config) {
  std::set<std::string> unused;
  for (const MixerKind& kind : known_mixers()) unused.insert(kind.settings.begin(), kind.settings.end());
  bool rotates = false, uses_alpha = false;
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const MixerKind& kind = find_mixer(config.mixer_of(l));
    for (const std::string& used : kind.settings) unused.erase(used);
    const auto uses = [&](const char* key) { return has_setting(kind, key); };
    uses_alpha = uses_alpha || (uses("alpha") && !(uses("sieve") && config.sieve == "algorithm1"));
    rotates = rotates || (uses("position") && config.position == "rope") ||
              (uses("screening_position") && config.screening_position == "rope");
  }
  for (const char* key : {"rope_theta", "rope_factor", "rope_scaling"}) {
    if (rotates) unused.erase(key);
    if (!rotates) unused.insert(key);
  }
  for (const char* key : {"rope_low_freq_factor", "rope_high_freq_factor", "rope_original_length"}) {
    if (!rotates || config.rope_scaling != "llama3") unused.insert(key);
  }
  if (!uses_alpha) unused.insert("alpha");
  if (config.sieve != "algorithm1") unused.insert("sieve_epsilon");
  if (!config.has_mlp()) unused.insert("intermediate_size");
  if (config.has_unit_embedding()) unused.insert("tie_word_embeddings");
  if (!config.has_norms()) unused.insert("final_norm_weight");
  if (config.has_norms()) unused.erase("norm_eps");
  return unused;
}

/// The keys of config.json and recipes for `unused_settings`, in a Multiscreen with its own name of the position.
std::set<std::string> unused_keys(const ModelConfig& config) {
  std::set<std::string> unused = unused_settings(config);
  if (!is_multiscreen(config)) {
    unused.insert("psi");
    return unused;
  }
  unused.erase("position");
  if (unused.contains("screening_position")) unused.insert("position");
  unused.insert("screening_position");
  return unused;
}

/// Throws as for an unknown key when the configuration has one of `keys`.
void refuse_keys(const json& config, const std::set<std::string>& keys) {
  std::vector<std::string> known = kKeys;
  std::erase_if(known, [&](const std::string& key) { return keys.contains(key) && !key.starts_with("rope_"); });
  const ConfigReader strict(config, known);
}

}  // namespace

std::span<const std::string> known_models() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> result;
    for (const Preset& preset : kPresets) result.push_back(preset.name);
    return result;
  }();
  return names;
}

ModelConfig read_model_config(const json& given) {
  const Preset& preset = find_preset(given);
  const ConfigReader reader(given, kKeys);
  ModelConfig config;
  config.model_type = preset.name;
  read_sizes(reader, config);
  read_layers(reader, preset, config);
  read_attention(reader, config);
  read_screening(reader, config);
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const MixerKind& kind = find_mixer(config.mixer_of(l));
    if (kind.check != nullptr) kind.check(config);
    check_strict(config, kind);
  }
  json used = given;
  const std::set<std::string> unused = unused_keys(config);
  for (const std::string& key : unused) used.erase(key);
  if (used.size() == given.size()) return config;
  refuse_keys(given, is_multiscreen(config) ? unused : std::set<std::string>{"psi"});
  // Without the unused settings, which would otherwise decide about parameters: Scalable-Softmax without a softmax.
  return read_model_config(used);
}

json to_json(const ModelConfig& config) {
  json result = {{"model_type", config.model_type},
                 {"vocab_size", config.vocab_size},
                 {"hidden_size", config.hidden_size},
                 {"num_hidden_layers", config.num_hidden_layers},
                 {"num_attention_heads", config.num_attention_heads},
                 {"max_position_embeddings", config.max_position_embeddings},
                 {"pattern", config.pattern},
                 {"norm", config.norm},
                 {"mlp", config.mlp},
                 {"intermediate_size", config.intermediate_size},
                 {"embedding", config.embedding},
                 {"tie_word_embeddings", config.tie_word_embeddings},
                 {"final_norm_weight", config.final_norm_weight},
                 {"norm_eps", config.norm_eps},
                 {"window", config.window},
                 {"position", is_multiscreen(config) ? config.screening_position : config.position},
                 {"rope_theta", config.rope_theta},
                 {"rope_factor", config.rope_factor},
                 {"qk_norm", config.qk_norm},
                 {"ssmax", config.ssmax},
                 {"alpha", config.alpha},
                 {"key_dim", config.key_dim},
                 {"value_dim", config.value_dim},
                 {"mipe_threshold", config.mipe_threshold},
                 {"screening_position", config.screening_position},
                 {"tanh_norm", config.tanh_norm},
                 {"gate", config.gate},
                 {"output_scale", config.output_scale}};
  if (config.rope_scaling == "llama3") {
    result["rope_scaling"] = config.rope_scaling;
    result["rope_low_freq_factor"] = config.rope_low_freq_factor;
    result["rope_high_freq_factor"] = config.rope_high_freq_factor;
    result["rope_original_length"] = config.rope_original_length;
  }
  if (config.strict) result["strict"] = *config.strict;
  if (config.sieve == "algorithm1") {
    result["sieve"] = config.sieve;
    result["sieve_epsilon"] = config.sieve_epsilon;
  }
  if (config.logit_soft_cap) result["logit_soft_cap"] = *config.logit_soft_cap;
  if (config.ssmax_scale) result["ssmax_scale"] = *config.ssmax_scale;
  if (config.mipe_wrap_boundary) result["mipe_wrap_boundary"] = *config.mipe_wrap_boundary;
  if (config.fixed_r) result["fixed_r"] = *config.fixed_r;
  if (config.mlstm_heads != config.num_attention_heads) result["mlstm_heads"] = config.mlstm_heads;
  for (const std::string& key : unused_keys(config)) result.erase(key);
  const Preset& preset = find_preset(result);
  if (config.norm == preset.norm) result.erase("norm");
  if (config.mlp == preset.mlp) result.erase("mlp");
  if (config.embedding == preset.embedding) result.erase("embedding");
  if (is_multiscreen(config) && config.pattern == preset.pattern) result.erase("pattern");
  if (is_multiscreen(config) && config.output_scale) result.erase("output_scale");
  return result;
}

json complete_config(const json& config) {
  return to_json(read_model_config(config));
}

std::span<const std::string> model_keys() {
  return kKeys;
}

json complete_stored_config(const json& config) {
  if (!config.is_object()) return complete_config(config);
  const std::string& type = find_preset(config).name;
  json stored = without_foreign_keys(config);
  // Until version 0.1 of November 2026 the screening layers of other presets had no s_O. Other models drop the key.
  if (type != kMultiscreen && !stored.contains("output_scale")) stored["output_scale"] = false;
  json complete = complete_config(stored);
  check_foreign_keys(config, read_model_config(complete));
  return complete;
}

}  // namespace tamis::models
