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

void ConfigReader::operator()(const std::string& key, int64_t& value, const Allowed& allowed) const {
  if (has(key)) return read(key, object()[key], value, allowed);
  if (value == 0) fail_at(key, name_of(key) + " is missing");
}

}  // namespace tamis::models
