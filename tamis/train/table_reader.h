#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tamis/base/object_reader.h"
#include "tamis/train/toml.h"

namespace tamis::train {

/// Reads one table of a TOML document. Every failure throws ExitCode::kUsage with file:line.
class TableReader : public ObjectReader {
 public:
  /// `path` is the dotted path of `table` in the document; both arguments must outlive the reader. Throws when `table`
  /// is not a table.
  TableReader(const TomlDocument& document, std::string path, const nlohmann::json& table);

 private:
  std::string name_of(const std::string& key) const override;
  std::string kind_of_choice(const std::string& key) const override;
  std::string kind_of_key() const override;
  Error error_at(const std::string& key, const std::string& text) const override;

  const TomlDocument& document_;
  const std::string path_;
};

}  // namespace tamis::train
