#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>

#include "tamis/base/object_reader.h"

namespace tamis::models {

/// Typed access to a model's configuration. Every failure throws ExitCode::kUsage and names the key, the expected
/// values and the given one. A null value counts as absent.
class ConfigReader : public ObjectReader {
 public:
  /// `config` must outlive the reader. Throws when it is not an object or has a key outside `known`.
  ConfigReader(const nlohmann::json& config, std::span<const std::string> known);

  bool has(const std::string& key) const;
  /// A key without a fallback is required. Integers lie in [least, most], numbers in (above, most].
  int64_t integer(const std::string& key, int64_t least, int64_t most, std::optional<int64_t> fallback = {}) const;
  double number(const std::string& key, double above, double most, std::optional<double> fallback = {}) const;
  bool boolean(const std::string& key, bool fallback) const;
  std::string text(const std::string& key, const std::string& fallback) const;
  std::string choice(const std::string& key, std::span<const std::string> choices, const std::string& fallback) const;

 private:
  std::string name_of(const std::string& key) const override;
  std::string kind_of_choice(const std::string& key) const override;
  std::string kind_of_key() const override;
  Error error_at(const std::string& key, const std::string& text) const override;

  template <typename T>
  T value(const std::string& key, const std::optional<T>& fallback, const Allowed& allowed) const;
};

}  // namespace tamis::models
