#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <string>

namespace tamis::train {

/// A TOML file as JSON values, and where each stands: `positions["train.lr"]` is `recipes/demo.toml:12`.
struct TomlDocument {
  std::string name;  // the file as the user gave it, or "standard input"
  nlohmann::json values = nlohmann::json::object();
  std::map<std::string, std::string> positions;

  /// Where `path` (dotted) stands; the nearest table around it when it was not written down itself.
  std::string position(std::string path) const;
};

/// Of a file, or of standard input for "-". Throws ExitCode::kInput when it cannot be read, ExitCode::kUsage with
/// file:line when it is not TOML.
TomlDocument read_toml(const std::filesystem::path& file);

/// Applies `train.lr=0.0625`. The right side is a TOML value; what is not one is taken as a string, so that paths and
/// names need no quotes. Throws ExitCode::kUsage.
void override_value(TomlDocument& document, const std::string& assignment);

/// JSON as TOML text; nulls are left out.
std::string to_toml(const nlohmann::json& values);

}  // namespace tamis::train
