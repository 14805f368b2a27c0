#include "tamis/base/object_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <type_traits>

#include "tamis/base/json.h"
#include "tamis/base/names.h"

namespace tamis {
namespace {

using nlohmann::json;

/// `a number above 0 and at most 1`.
std::string range(const char* kind, const Allowed& allowed) {
  const Allowed unlimited;
  const bool open_end = allowed.most == unlimited.most;
  if (allowed.least == unlimited.least && open_end) return kind;
  const std::string least = fmt::format("{} {} {}", kind, allowed.above_least ? "above" : "of at least", allowed.least);
  if (open_end) return least;
  if (allowed.above_least) return fmt::format("{} and at most {}", least, allowed.most);
  return fmt::format("{} from {} to {}", kind, allowed.least, allowed.most);
}

bool inside(const json& number, const Allowed& allowed) {
  const auto value = number.get<double>();
  if (allowed.above_least && value == allowed.least) return false;
  return value >= allowed.least && value <= allowed.most;
}

bool fits_int64(const json& number) {
  return !number.is_number_unsigned() || number.get<uint64_t>() <= std::numeric_limits<int64_t>::max();
}

bool contains(std::span<const std::string> names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

template <typename T>
constexpr const char* kListOf = "a list of numbers";
template <>
constexpr const char* kListOf<std::string> = "a list of strings";

}  // namespace

void ObjectReader::check_object(const std::string& name) const {
  if (!object_.is_object()) fail_at("", fmt::format("{}: expected a table of keys, but got {}", name, shown(object_)));
}

void ObjectReader::accept(const std::string& key) {
  if (!contains(known_, key)) known_.push_back(key);
}

void ObjectReader::refuse_other_keys(std::span<const std::string> ignored) const {
  for (const auto& [key, value] : object_.items()) {
    if (!contains(known_, key) && !contains(ignored, key)) fail_at(key, unknown_name(kind_of_key(), key, known_));
  }
}

void ObjectReader::refuse(const std::string& key, const std::string& expected, const json& value) const {
  fail_at(key, fmt::format("{} must be {}, but is {}", name_of(key), expected, shown(value)));
}

void ObjectReader::read(const std::string& key, const json& from, bool& value, const Allowed&) const {
  if (!from.is_boolean()) refuse(key, "true or false", from);
  value = from.get<bool>();
}

void ObjectReader::read(const std::string& key, const json& from, int64_t& value, const Allowed& allowed) const {
  if (!from.is_number_integer() || !fits_int64(from) || !inside(from, allowed)) {
    refuse(key, range("a whole number", allowed), from);
  }
  value = from.get<int64_t>();
}

void ObjectReader::read(const std::string& key, const json& from, double& value, const Allowed& allowed) const {
  if (!from.is_number() || !inside(from, allowed)) refuse(key, range("a number", allowed), from);
  value = from.get<double>();
}

void ObjectReader::read(const std::string& key, const json& from, std::string& value, const Allowed& allowed) const {
  if (!from.is_string()) refuse(key, "a string", from);
  value = from.get<std::string>();
  if (!allowed.choices.empty() && !contains(allowed.choices, value)) {
    fail_at(key, unknown_name(kind_of_choice(key), value, allowed.choices));
  }
}

void ObjectReader::read(const std::string& key, const json& from, std::array<double, 2>& value,
                        const Allowed& allowed) const {
  if (!from.is_array() || from.size() != 2) refuse(key, "a list of two numbers", from);
  for (size_t i = 0; i < 2; ++i) read(key, from[i], value[i], allowed);
}

template <typename T>
void ObjectReader::read_list(const std::string& key, const json& from, std::vector<T>& list,
                             const Allowed& allowed) const {
  const bool single = std::is_same_v<T, std::string> ? from.is_string() : from.is_number();
  if (!from.is_array() && !single) refuse(key, kListOf<T>, from);
  list.clear();
  for (const json& item : single ? json::array({from}) : from) read(key, item, list.emplace_back(), allowed);
}

void ObjectReader::read(const std::string& key, const json& from, std::vector<int64_t>& value,
                        const Allowed& allowed) const {
  read_list(key, from, value, allowed);
}

void ObjectReader::read(const std::string& key, const json& from, std::vector<double>& value,
                        const Allowed& allowed) const {
  read_list(key, from, value, allowed);
}

void ObjectReader::read(const std::string& key, const json& from, std::vector<std::string>& value,
                        const Allowed& allowed) const {
  read_list(key, from, value, allowed);
}

}  // namespace tamis
