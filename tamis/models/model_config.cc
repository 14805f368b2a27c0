#include "tamis/models/model_config.h"

#include <algorithm>
#include <array>
#include <set>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/models/config_reader.h"
#include "tamis/models/mixer.h"
#include "tamis/models/model.h"
#include "tamis/models/model_fields.h"
#include "tamis/models/stored_config.h"

namespace tamis::models {
namespace {

using nlohmann::json;

constexpr double kMostPsi = 1 << 10;

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

const Preset& find_preset(const json& config) {
  if (!config.is_object()) fail(ExitCode::kUsage, "model: expected a table of keys, but got {}", shown(config));
  const json type = config.value("model_type", json(kMultiscreen));
  if (!type.is_string()) fail(ExitCode::kUsage, "model: \"model_type\" must be a name, but is {}", shown(type));
  for (const Preset& preset : kPresets) {
    if (preset.name == type) return preset;
  }
  throw Error(ExitCode::kUsage, unknown_name("model_type", type.get<std::string>(), known_models()));
}

ModelConfig defaults_of(const Preset& preset) {
  ModelConfig config;
  config.model_type = preset.name;
  config.pattern = preset.pattern;
  config.norm = preset.norm;
  config.mlp = preset.mlp;
  config.embedding = preset.embedding;
  return config;
}

/// Sets the sizes that `psi` stands for, if it is given.
void read_psi(const ConfigReader& reader, ModelConfig& config) {
  if (!reader.has("psi")) return;
  for (const char* size : {"hidden_size", "num_hidden_layers", "num_attention_heads"}) {
    if (!reader.has(size)) continue;
    fail(ExitCode::kUsage,
         "model: \"psi\" sets hidden_size, num_hidden_layers and num_attention_heads, but \"{}\" is given too; leave "
         "out one of them",
         size);
  }
  int64_t psi = 0;
  reader("psi", psi, up_to(kMostPsi));
  config.hidden_size = psi * psi;
  config.num_hidden_layers = config.num_attention_heads = psi;
}

void check_rope_scaling(const ModelConfig& config) {
  if (config.rope_scaling != "llama3" || config.rope_low_freq_factor < config.rope_high_freq_factor) return;
  fail(ExitCode::kUsage, "model: \"rope_high_freq_factor\" must be above \"rope_low_freq_factor\" {}, but is {}",
       config.rope_low_freq_factor, config.rope_high_freq_factor);
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

void check_mixers(const ModelConfig& config) {
  for (int64_t l = 0; l < config.num_hidden_layers; ++l) {
    const MixerKind& kind = find_mixer(config.mixer_of(l));
    if (kind.check != nullptr) kind.check(config);
    check_strict(config, kind);
  }
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
  std::vector<std::string> known(model_keys().begin(), model_keys().end());
  std::erase_if(known, [&](const std::string& key) { return keys.contains(key) && !key.starts_with("rope_"); });
  const ConfigReader strict(config, known);
}

/// Writes the keys that have a value.
struct ConfigWriter {
  json& to;

  template <typename T>
  void operator()(const std::string& key, const T& value, const Allowed&) const {
    to[key] = value;
  }
  template <typename T>
  void operator()(const std::string& key, const std::optional<T>& value, const Allowed&) const {
    if (value) to[key] = *value;
  }
};

/// Removes what the preset fixes, and settings of later versions that say what earlier ones did.
void erase_defaults(const ModelConfig& config, json& to) {
  const ModelConfig defaults = defaults_of(find_preset(to));
  const auto erase_if = [&](bool is_default, const char* key) {
    if (is_default) to.erase(key);
  };
  erase_if(config.norm == defaults.norm, "norm");
  erase_if(config.mlp == defaults.mlp, "mlp");
  erase_if(config.embedding == defaults.embedding, "embedding");
  erase_if(is_multiscreen(config) && config.pattern == defaults.pattern, "pattern");
  erase_if(is_multiscreen(config) && config.output_scale, "output_scale");
  erase_if(config.rope_scaling == defaults.rope_scaling, "rope_scaling");
  erase_if(config.sieve == defaults.sieve, "sieve");
  erase_if(config.trim_power == defaults.trim_power, "trim_power");
  erase_if(config.softmask == defaults.softmask, "softmask");
  erase_if(config.mlstm_heads == config.num_attention_heads, "mlstm_heads");
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

std::span<const std::string> model_keys() {
  static const std::vector<std::string> keys = [] {
    std::vector<std::string> result = {"model_type", "psi"};
    for (const Preset& preset : kPresets) {
      ModelConfig config = defaults_of(preset);
      visit_fields(config, [&](const char* key, const auto&, const Allowed&) {
        if (std::ranges::find(result, key) == result.end()) result.emplace_back(key);
      });
    }
    return result;
  }();
  return keys;
}

ModelConfig read_model_config(const json& given) {
  const Preset& preset = find_preset(given);
  const ConfigReader reader(given, model_keys());
  ModelConfig config = defaults_of(preset);
  read_psi(reader, config);
  visit_fields(config, reader);
  if (config.ssmax != "fixed" && !config.learns_scale()) config.ssmax_scale.reset();
  if (config.pattern.empty()) {
    fail(ExitCode::kUsage, "model: \"pattern\" must have a letter for each layer, but is empty");
  }
  for (const char letter : config.pattern) find_mixer(letter);
  check_rope_scaling(config);
  check_mixers(config);
  json used = given;
  const std::set<std::string> unused = unused_keys(config);
  for (const std::string& key : unused) used.erase(key);
  if (used.size() == given.size()) return config;
  refuse_keys(given, is_multiscreen(config) ? unused : std::set<std::string>{"psi"});
  // Without the unused settings, which would otherwise decide about parameters: Scalable-Softmax without a softmax.
  return read_model_config(used);
}

json to_json(const ModelConfig& config) {
  json result = {{"model_type", config.model_type}};
  ModelConfig copy = config;
  visit_fields(copy, ConfigWriter{result});
  for (const std::string& key : unused_keys(config)) result.erase(key);
  erase_defaults(config, result);
  return result;
}

json complete_config(const json& config) {
  return to_json(read_model_config(config));
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
