#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "tamis/base/object_reader.h"

namespace tamis::models {

/// Reads a model's configuration. Every failure throws ExitCode::kUsage and names the key, the expected values and the
/// given one. A null value counts as absent.
class ConfigReader : public ObjectReader {
 public:
  /// `config` must outlive the reader. Throws when it is not an object or has a key outside `known`.
  ConfigReader(const nlohmann::json& config, std::span<const std::string> known);

  bool has(const std::string& key) const;

  /// Reads `key` into `value`; an absent key leaves it unchanged. An integer that is 0 has no default: its key is
  /// required.
  template <typename T>
  void operator()(const std::string& key, T& value, const Allowed& allowed = {}) const {
    if (has(key)) read(key, object()[key], value, allowed);
  }
  template <typename T>
  void operator()(const std::string& key, std::optional<T>& value, const Allowed& allowed = {}) const {
    if (has(key)) read(key, object()[key], value.emplace(), allowed);
  }
  void operator()(const std::string& key, int64_t& value, const Allowed& allowed = {}) const;

 private:
  std::string name_of(const std::string& key) const override;
  std::string kind_of_choice(const std::string& key) const override;
  std::string kind_of_key() const override;
  Error error_at(const std::string& key, const std::string& text) const override;
};

}  // namespace tamis::models
