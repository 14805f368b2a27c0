#include "tamis/models/config_reader.h"

#include "tamis/base/error.h"

namespace tamis::models {

ConfigReader::ConfigReader(const nlohmann::json& config, std::span<const std::string> known) : ObjectReader(config) {
  check_object("model");
  for (const std::string& key : known) accept(key);
  refuse_other_keys();
}

std::string ConfigReader::name_of(const std::string& key) const {
  return fmt::format("model: \"{}\"", key);
}

std::string ConfigReader::kind_of_choice(const std::string& key) const {
  return key;
}

std::string ConfigReader::kind_of_key() const {
  return "model key";
}

Error ConfigReader::error_at(const std::string&, const std::string& text) const {
  return Error(ExitCode::kUsage, text);
}

bool ConfigReader::has(const std::string& key) const {
  return object().contains(key) && !object()[key].is_null();
}

template <typename T>
T ConfigReader::value(const std::string& key, const std::optional<T>& fallback, const Allowed& allowed) const {
  if (!has(key)) {
    if (fallback) return *fallback;
    fail_at(key, name_of(key) + " is missing");
  }
  T value{};
  read(key, object()[key], value, allowed);
  return value;
}

int64_t ConfigReader::integer(const std::string& key, int64_t least, int64_t most,
                              std::optional<int64_t> fallback) const {
  return value(key, fallback, {.least = static_cast<double>(least), .most = static_cast<double>(most)});
}

double ConfigReader::number(const std::string& key, double above, double most, std::optional<double> fallback) const {
  return value(key, fallback, {.least = above, .most = most, .above_least = true});
}

bool ConfigReader::boolean(const std::string& key, bool fallback) const {
  return value(key, std::optional(fallback), {});
}

std::string ConfigReader::text(const std::string& key, const std::string& fallback) const {
  return value(key, std::optional(fallback), {});
}

std::string ConfigReader::choice(const std::string& key, std::span<const std::string> choices,
                                 const std::string& fallback) const {
  return value(key, std::optional(fallback), {.choices = {choices.begin(), choices.end()}});
}

}  // namespace tamis::models
