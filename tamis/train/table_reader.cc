#include "tamis/train/table_reader.h"

#include <utility>

#include "tamis/base/error.h"

namespace tamis::train {

TableReader::TableReader(const TomlDocument& document, std::string path, const nlohmann::json& table)
    : ObjectReader(table), document_(document), path_(std::move(path)) {
  check_object(path_);
}

std::string TableReader::name_of(const std::string& key) const {
  return path_ + "." + key;
}

std::string TableReader::kind_of_choice(const std::string& key) const {
  return name_of(key);
}

std::string TableReader::kind_of_key() const {
  return "key of [" + path_ + "]";
}

Error TableReader::error_at(const std::string& key, const std::string& text) const {
  return Error(ExitCode::kUsage, document_.position(key.empty() ? path_ : name_of(key)) + ": " + text);
}

}  // namespace tamis::train
