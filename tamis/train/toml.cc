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

/// The end of the string or comment that begins at `at`; `at` itself when none begins there. If the text is not valid
/// TOML, the result may be wrong, but only after the position where toml++ reports the error.
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

/// toml++ creates a nested table for every part of a dotted key and destroys them recursively, so that very long keys
/// would overflow the stack.
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
      fail(ExitCode::kUsage, "{}:{}: expected a dotted key of at most {} parts", name, line, kMostKeyParts);
    }
  }
}

/// Converts `node` to JSON and records the position of each value.
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

/// The only call of toml++. Throws toml::parse_error when the text is not TOML, ExitCode::kUsage for a key that is too
/// long.
toml::table parse(const std::string& text, const std::string& name) {
  refuse_long_keys(text, name);
  return toml::parse(text, name);
}

/// The right side of `key=value`: a TOML value, or else the text itself.
json parse_value(const std::string& text, const std::string& name) {
  try {
    TomlDocument scratch;
    return to_json(parse("value = " + text, name), "", scratch).at("value");
  } catch (const toml::parse_error&) {
    return text;
  }
}

std::string toml_key(const std::string& key) {
  const auto bare = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-'; };
  return !key.empty() && std::all_of(key.begin(), key.end(), bare) ? key : json(key).dump();
}

/// Numbers, strings and lists have the same syntax in JSON and TOML; nlohmann writes the shortest numbers.
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
  return parse_toml(read_input(file), input_name(file));
}

TomlDocument parse_toml(const std::string& text, const std::string& name) {
  TomlDocument document;
  document.name = name;
  try {
    document.values = to_json(parse(text, name), "", document);
  } catch (const toml::parse_error& error) {
    fail(ExitCode::kUsage, "{}:{}: {}", document.name, error.source().begin.line, error.description());
  }
  return document;
}

void override_value(TomlDocument& document, const std::string& assignment) {
  if (!is_utf8(assignment)) fail(ExitCode::kUsage, "--set {}: expected UTF-8", quoted_name(assignment));
  const auto [path, value] = split_override(assignment);
  refuse_long_keys(path, "--set");
  constexpr size_t kLongest = 200;  // bytes that messages show
  const std::string shown = assignment.size() <= kLongest ? assignment : path + "=" + quoted_name(value);
  if (path.starts_with('.') || path.ends_with('.') || path.find("..") != std::string::npos) {
    fail(ExitCode::kUsage, "--set {}: a key is empty; expected table.key=value", shown);
  }
  json* place = &document.values;
  std::istringstream keys(path);
  for (std::string key; std::getline(keys, key, '.');) {
    if (!place->is_object()) {
      fail(ExitCode::kUsage, "--set {}: the parent of {} is not a table in {}", shown, quoted_name(key), document.name);
    }
    place = &(*place)[key];
    if (place->is_null()) *place = json::object();
  }
  *place = parse_value(value, "--set");
  document.positions[path] = "--set " + shown;
}

std::string to_toml(const json& values) {
  std::string text;
  write_table(text, "", values);
  return text;
}

}  // namespace tamis::train
