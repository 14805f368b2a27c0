#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

namespace tamis::models {

/// Typed access to a model's configuration. Every failure throws ExitCode::kUsage and names the key, what was expected
/// and what came. An absent key and a null mean the same.
class ConfigReader {
 public:
  /// `config` must outlive the reader. Throws when it is not an object or has a key outside `known`.
  ConfigReader(const nlohmann::json& config, std::span<const std::string> known);

  bool has(const std::string& key) const;
  /// Without a fallback the key is required.
  int64_t integer(const std::string& key, int64_t least, int64_t most, std::optional<int64_t> fallback = {}) const;
  double number(const std::string& key, double above, double most, std::optional<double> fallback = {}) const;
  bool boolean(const std::string& key, bool fallback) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  std::string choice(const std::string& key, std::span<const std::string> choices, const std::string& fallback) const;

 private:
  const nlohmann::json& at(const std::string& key) const;
  const nlohmann::json& config_;
};

}  // namespace tamis::models
