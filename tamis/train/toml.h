#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace tamis::train {

/// A TOML file as JSON values, with the position of each: `positions["train.lr"]` is `recipes/demo.toml:12`.
struct TomlDocument {
  std::string name;  // the file as the user gave it, or "standard input"
  nlohmann::json values = nlohmann::json::object();
  std::map<std::string, std::string> positions;

  /// The position of the dotted `path`; if the file does not contain it, that of the innermost table around it.
  std::string position(std::string path) const;
};

/// Of a file, or of standard input for "-". Throws ExitCode::kInput when it cannot be read, ExitCode::kUsage with
/// file:line when it is not TOML.
TomlDocument read_toml(const std::filesystem::path& file);

/// Of a text that `name` names in messages. Throws as read_toml() does.
TomlDocument parse_toml(const std::string& text, const std::string& name);

/// Applies an override such as `train.lr=0.0625`. The right side is a TOML value or else a string, so that paths and
/// names need no quotes. Throws ExitCode::kUsage.
void override_value(TomlDocument& document, const std::string& assignment);

/// Writes JSON as TOML text, without null values.
std::string to_toml(const nlohmann::json& values);

}  // namespace tamis::train
