#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/train/toml.h"

namespace tamis::train {

/// What a value may be: numbers (each one of a list) in [least, most], strings among `choices` when there are any.
struct Allowed {
  double least = -std::numeric_limits<double>::max();
  double most = std::numeric_limits<double>::max();
  std::vector<std::string> choices = {};
};

/// Reads one table of the document into a struct, key by key, and then refuses what no key asked for.
class TableReader {
 public:
  TableReader(const TomlDocument& document, std::string path, const nlohmann::json& table)
      : document_(document), path_(std::move(path)), table_(table) {
    if (!table_.is_object()) fail_at(path_, "{} must be a table", path_);
  }

  template <typename T>
  void operator()(const std::string& key, T& value, const Allowed& allowed) {
    known_.push_back(key);
    if (table_.contains(key)) read(key, table_[key], value, allowed);
  }

  /// A key that somebody else reads.
  void accept(const std::string& key) { known_.push_back(key); }

  void refuse_other_keys() const {
    for (const auto& [key, value] : table_.items()) {
      if (std::find(known_.begin(), known_.end(), key) != known_.end()) continue;
      fail_at(path_ + "." + key, "{}", unknown_name("key of [" + path_ + "]", key, known_));
    }
  }

  template <typename... Args>
  [[noreturn]] void fail_at(const std::string& path, fmt::format_string<Args...> text, Args&&... args) const {
    throw Error(ExitCode::kUsage, document_.position(path) + ": " + fmt::format(text, std::forward<Args>(args)...));
  }

 private:
  [[noreturn]] void refuse(const std::string& key, const std::string& expected, const nlohmann::json& value) const {
    fail_at(path_ + "." + key, "{}.{} must be {}, but is {}", path_, key, expected, shown(value));
  }

  static std::string range(const char* kind, const Allowed& allowed) {
    constexpr double kMost = std::numeric_limits<double>::max();
    if (allowed.least == -kMost) return kind;
    if (allowed.most == kMost) return fmt::format("{} of at least {}", kind, allowed.least);
    return fmt::format("{} from {} to {}", kind, allowed.least, allowed.most);
  }

  static bool inside(double value, const Allowed& allowed) { return value >= allowed.least && value <= allowed.most; }

  void read(const std::string& key, const nlohmann::json& from, bool& value, const Allowed&) const {
    if (!from.is_boolean()) refuse(key, "true or false", from);
    value = from.get<bool>();
  }

  void read(const std::string& key, const nlohmann::json& from, int64_t& value, const Allowed& allowed) const {
    if (!from.is_number_integer() || !inside(from.get<double>(), allowed)) {
      refuse(key, range("a whole number", allowed), from);
    }
    value = from.get<int64_t>();
  }

  void read(const std::string& key, const nlohmann::json& from, double& value, const Allowed& allowed) const {
    if (!from.is_number() || !inside(from.get<double>(), allowed)) refuse(key, range("a number", allowed), from);
    value = from.get<double>();
  }

  void read(const std::string& key, const nlohmann::json& from, std::string& value, const Allowed& allowed) const {
    if (!from.is_string()) refuse(key, "a string", from);
    value = from.get<std::string>();
    const auto& choices = allowed.choices;
    if (!choices.empty() && std::find(choices.begin(), choices.end(), value) == choices.end()) {
      fail_at(path_ + "." + key, "{}", unknown_name(path_ + "." + key, value, choices));
    }
  }

  template <typename T>
  void read(const std::string& key, const nlohmann::json& from, std::array<T, 2>& pair, const Allowed& allowed) const {
    if (!from.is_array() || from.size() != 2) refuse(key, "a list of two numbers", from);
    for (size_t i = 0; i < 2; ++i) read(key, from[i], pair[i], allowed);
  }

  /// One string stands for a list of one.
  void read(const std::string& key, const nlohmann::json& from, std::vector<std::string>& list,
            const Allowed& allowed) const {
    if (!from.is_array() && !from.is_string()) refuse(key, "a list of strings", from);
    list.clear();
    for (const nlohmann::json& item : from.is_array() ? from : nlohmann::json::array({from}))
      read(key, item, list.emplace_back(), allowed);
  }

  /// One number stands for a list of one.
  template <typename Number>
  void read(const std::string& key, const nlohmann::json& from, std::vector<Number>& list,
            const Allowed& allowed) const {
    if (!from.is_array() && !from.is_number()) refuse(key, "a list of numbers", from);
    list.clear();
    for (const nlohmann::json& item : from.is_array() ? from : nlohmann::json::array({from})) {
      read(key, item, list.emplace_back(), allowed);
    }
  }

  const TomlDocument& document_;
  const std::string path_;
  const nlohmann::json& table_;
  std::vector<std::string> known_;
};

}  // namespace tamis::train
