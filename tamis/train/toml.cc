#include "tamis/train/toml.h"

#include <toml++/toml.h>

#include <memory>
#include <sstream>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/files.h"

namespace tamis::train {
namespace {

using nlohmann::json;

std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

/// Converts `node`, noting where each value stands.
json to_json(const toml::node& node, const std::string& path, TomlDocument& document) {
  document.positions[path] = fmt::format("{}:{}", document.name, node.source().begin.line);
  if (const auto* table = node.as_table()) {
    json object = json::object();
    for (const auto& [key, value] : *table) {
      object[std::string(key.str())] = to_json(value, join(path, key.str()), document);
    }
    return object;
  }
  if (const auto* array = node.as_array()) {
    json list = json::array();
    for (const auto& value : *array) list.push_back(to_json(value, join(path, std::to_string(list.size())), document));
    return list;
  }
  if (const auto value = node.as_integer()) return value->get();
  if (const auto value = node.as_floating_point()) return value->get();
  if (const auto value = node.as_boolean()) return value->get();
  if (const auto value = node.as_string()) return value->get();
  fail(ExitCode::kUsage, "{}: {} is a date or time, which no key of a recipe takes", document.position(path), path);
}

toml::table parse(const std::string& text, const std::string& name) {
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    fail(ExitCode::kUsage, "{}:{}: {}", name, error.source().begin.line, error.description());
  }
}

/// The right side of `key=value`.
json parse_value(const std::string& text) {
  try {
    TomlDocument scratch;
    return to_json(toml::parse("value = " + text), "", scratch).at("value");
  } catch (const toml::parse_error&) {
    return text;
  }
}

std::unique_ptr<toml::node> to_node(const json& value) {
  if (value.is_object()) {
    auto table = std::make_unique<toml::table>();
    for (const auto& [key, item] : value.items()) {
      if (!item.is_null()) table->insert(key, std::move(*to_node(item)));
    }
    return table;
  }
  if (value.is_array()) {
    auto array = std::make_unique<toml::array>();
    for (const json& item : value) array->push_back(std::move(*to_node(item)));
    return array;
  }
  if (value.is_boolean()) return std::make_unique<toml::value<bool>>(value.get<bool>());
  if (value.is_number_integer()) return std::make_unique<toml::value<int64_t>>(value.get<int64_t>());
  if (value.is_number_float()) return std::make_unique<toml::value<double>>(value.get<double>());
  return std::make_unique<toml::value<std::string>>(value.get<std::string>());
}

}  // namespace

std::string TomlDocument::position(std::string path) const {
  while (true) {
    if (const auto found = positions.find(path); found != positions.end()) return found->second;
    const size_t dot = path.rfind('.');
    if (dot == std::string::npos) return name;
    path.resize(dot);
  }
}

TomlDocument read_toml(const std::filesystem::path& file) {
  TomlDocument document;
  document.name = file.string();
  const toml::table table = parse(read_file(file), document.name);
  document.values = to_json(table, "", document);
  return document;
}

void override_value(TomlDocument& document, const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    fail(ExitCode::kUsage, "--set {}: expected key=value, like --set train.lr=0.0625", assignment);
  }
  const std::string path = assignment.substr(0, equals);
  json* place = &document.values;
  std::istringstream keys(path);
  for (std::string key; std::getline(keys, key, '.');) {
    if (!place->is_object()) {
      fail(ExitCode::kUsage, "--set {}: there is no table around \"{}\" in {}", assignment, key, document.name);
    }
    place = &(*place)[key];
    if (place->is_null()) *place = json::object();
  }
  *place = parse_value(assignment.substr(equals + 1));
  document.positions[path] = "--set " + assignment;
}

std::string to_toml(const json& values) {
  std::ostringstream text;
  text << toml::toml_formatter(*to_node(values)->as_table()) << "\n";
  return text.str();
}

}  // namespace tamis::train
