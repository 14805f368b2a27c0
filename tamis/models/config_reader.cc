#include "tamis/models/config_reader.h"

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"

namespace tamis::models {

ConfigReader::ConfigReader(const nlohmann::json& config, std::span<const std::string> known) : config_(config) {
  if (!config.is_object()) fail(ExitCode::kUsage, "model: expected a table of keys, but got {}", shown(config));
  for (const auto& [key, value] : config.items()) {
    if (std::find(known.begin(), known.end(), key) == known.end()) {
      throw Error(ExitCode::kUsage, unknown_name("model key", key, known));
    }
  }
}

bool ConfigReader::has(const std::string& key) const {
  return config_.contains(key) && !config_[key].is_null();
}

const nlohmann::json& ConfigReader::at(const std::string& key) const {
  if (!has(key)) fail(ExitCode::kUsage, "model: \"{}\" is missing", key);
  return config_[key];
}

int64_t ConfigReader::integer(const std::string& key, int64_t least, int64_t most,
                              std::optional<int64_t> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const nlohmann::json& value = at(key);
  // As double first: an unsigned beyond int64 must not wrap around.
  const bool inside = value.is_number_integer() && value.get<double>() >= static_cast<double>(least) &&
                      value.get<double>() <= static_cast<double>(most);
  if (!inside) {
    fail(ExitCode::kUsage, "model: \"{}\" must be a whole number from {} to {}, but is {}", key, least, most,
         shown(value));
  }
  return value.get<int64_t>();
}

double ConfigReader::number(const std::string& key, double above, double most, std::optional<double> fallback) const {
  if (fallback && !has(key)) return *fallback;
  const nlohmann::json& value = at(key);
  if (!value.is_number() || !(value.get<double>() > above && value.get<double>() <= most)) {
    fail(ExitCode::kUsage, "model: \"{}\" must be a number above {} and at most {}, but is {}", key, above, most,
         shown(value));
  }
  return value.get<double>();
}

bool ConfigReader::boolean(const std::string& key, bool fallback) const {
  if (!has(key)) return fallback;
  if (!at(key).is_boolean())
    fail(ExitCode::kUsage, "model: \"{}\" must be true or false, but is {}", key, shown(at(key)));
  return at(key).get<bool>();
}

std::string ConfigReader::text(const std::string& key, const std::string& fallback) const {
  if (!has(key)) return fallback;
  const nlohmann::json& value = at(key);
  if (!value.is_string()) fail(ExitCode::kUsage, "model: \"{}\" must be a text, but is {}", key, shown(value));
  return value.get<std::string>();
}

std::string ConfigReader::choice(const std::string& key, std::span<const std::string> choices,
                                 const std::string& fallback) const {
  const std::string name = text(key, fallback);
  if (std::find(choices.begin(), choices.end(), name) == choices.end()) {
    throw Error(ExitCode::kUsage, unknown_name(key, name, choices));
  }
  return name;
}

}  // namespace tamis::models
