#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tamis/base/object_reader.h"

namespace tamis::models::exchange {

/// Typed access to a config.json of another program. Every failure throws ExitCode::kInput with the file and the key. A
/// null value counts as absent; the first of several names that is present is read.
class ExternalConfig : public ObjectReader {
 public:
  /// `config` must outlive the reader.
  ExternalConfig(const nlohmann::json& config, std::string where);

  using Names = std::vector<std::string>;
  bool has(const std::string& key) const;
  /// Without a fallback the key is required.
  int64_t size(const Names& names, std::optional<int64_t> fallback = {});
  double number(const Names& names, std::optional<double> fallback = {});
  bool boolean(const std::string& key, bool fallback);
  std::string text(const std::string& key, const std::string& fallback);
  /// The value itself; null when absent.
  nlohmann::json value(const std::string& key);
  /// The key must be absent or have this value: `why` says what Tamis lacks.
  void require(const std::string& key, const nlohmann::json& expected, const std::string& why);
  /// The heads must divide the width, and `head_dim`, if present, must be the quotient.
  void check_heads(const std::string& heads_key, int64_t heads, int64_t width);
  [[noreturn]] void refuse_value(const std::string& key, const std::string& text) const;

  /// Throws when a key was neither read nor is one that every config.json may have: ignored_keys() (stored_config.h),
  /// special tokens, the dtype.
  void finish();
  /// The same for an object within a config.json: throws when a key was not read.
  void finish_part() const { refuse_other_keys(); }

 private:
  const std::string* present(const Names& names);

  std::string name_of(const std::string& key) const override;
  std::string kind_of_choice(const std::string& key) const override;
  std::string kind_of_key() const override;
  Error error_at(const std::string& key, const std::string& text) const override;

  std::string where_;
};

}  // namespace tamis::models::exchange
