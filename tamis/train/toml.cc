#include "tamis/train/toml.h"

#include <toml++/toml.h>

#include <algorithm>
#include <cctype>
#include <sstream>

#include "tamis/base/error.h"
#include "tamis/base/input.h"
#include "tamis/base/names.h"
#include "tamis/base/utf8.h"
#include "tamis/train/options.h"

namespace tamis::train {
namespace {

using nlohmann::json;

std::string join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

constexpr int kMostKeyParts = 16;

/// Where the string or comment that begins at `at` ends; `at` itself where none does. A text that is no TOML may be
/// taken apart wrongly, but only behind the place where toml++ stops.
size_t skip_quoted(std::string_view text, size_t at) {
  const char quote = text[at];
  if (quote == '#') return std::min(text.find('\n', at), text.size());
  if (quote != '"' && quote != '\'') return at;
  const bool lines = text.substr(at, 3) == std::string(3, quote);
  const std::string_view end = text.substr(at, lines ? 3 : 1);
  for (at += end.size(); at < text.size() && (lines || text[at] != '\n'); ++at) {
    if (text.substr(at).starts_with(end)) return at + end.size();
    if (quote == '"' && text[at] == '\\') ++at;
  }
  return std::min(at, text.size());
}

/// toml++ nests a table for every part of a dotted key and takes them apart by recursion, without a limit.
void refuse_long_keys(std::string_view text, const std::string& name) {
  int parts = 1, line = 1;
  for (size_t at = 0; at < text.size();) {
    if (const size_t end = skip_quoted(text, at); end > at) {
      line += static_cast<int>(std::count(text.begin() + at, text.begin() + end, '\n'));
      at = end;
      continue;
    }
    const char c = text[at++];
    if (c == '\n') ++line;
    if (std::string_view(",[]{}=\n").find(c) != std::string_view::npos) parts = 1;
    if (c == '.' && ++parts > kMostKeyParts) {
      fail(ExitCode::kUsage, "{}:{}: expected a key of at most {} parts with dots between", name, line, kMostKeyParts);
    }
  }
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
  refuse_long_keys(text, name);
  try {
    return toml::parse(text, name);
  } catch (const toml::parse_error& error) {
    fail(ExitCode::kUsage, "{}:{}: {}", name, error.source().begin.line, error.description());
  }
}

/// The right side of `key=value`.
json parse_value(const std::string& text, const std::string& name) {
  refuse_long_keys(text, name);
  try {
    TomlDocument scratch;
    return to_json(toml::parse("value = " + text), "", scratch).at("value");
  } catch (const toml::parse_error&) {
    return text;
  }
}

std::string toml_key(const std::string& key) {
  const auto bare = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; };
  return !key.empty() && std::all_of(key.begin(), key.end(), bare) ? key : json(key).dump();
}

/// Numbers, strings and lists are written alike in JSON and TOML, and nlohmann's shortest numbers read best.
void write_table(std::string& text, const std::string& path, const json& table) {
  for (const auto& [key, value] : table.items()) {
    if (!value.is_object() && !value.is_null()) text += fmt::format("{} = {}\n", toml_key(key), value.dump());
  }
  for (const auto& [key, value] : table.items()) {
    if (!value.is_object()) continue;
    const std::string inner = join(path, toml_key(key));
    text += fmt::format("{}[{}]\n", text.empty() ? "" : "\n", inner);
    write_table(text, inner, value);
  }
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
  document.name = input_name(file);
  const toml::table table = parse(read_input(file), document.name);
  document.values = to_json(table, "", document);
  return document;
}

void override_value(TomlDocument& document, const std::string& assignment) {
  if (!is_utf8(assignment)) fail(ExitCode::kUsage, "--set {}: expected UTF-8", quoted_name(assignment));
  const auto [path, value] = split_override(assignment);
  refuse_long_keys(path, "--set");
  json* place = &document.values;
  std::istringstream keys(path);
  for (std::string key; std::getline(keys, key, '.');) {
    if (!place->is_object()) {
      fail(ExitCode::kUsage, "--set {}: there is no table around {} in {}", assignment, quoted_name(key),
           document.name);
    }
    place = &(*place)[key];
    if (place->is_null()) *place = json::object();
  }
  *place = parse_value(value, "--set");
  document.positions[path] = "--set " + assignment;
}

std::string to_toml(const json& values) {
  std::string text;
  write_table(text, "", values);
  return text;
}

}  // namespace tamis::train
