#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tamis/base/error.h"

// How the text of an option becomes its value, and back: the whole text, or ExitCode::kUsage.

namespace tamis::cli {

template <typename T>
using Read = std::function<T(const std::string& option, const std::string& text)>;

/// `whole numbers from 1 to 64`; a lower limit that is the type's own says nothing.
template <typename T>
std::string expected_numbers(T least, T most) {
  const char* kind = std::is_integral_v<T> ? "whole numbers" : "numbers";
  if (std::is_unsigned_v<T> || least > std::numeric_limits<T>::lowest()) {
    return fmt::format("{} from {} to {}", kind, least, most);
  }
  return most < std::numeric_limits<T>::max() || std::is_integral_v<T> ? fmt::format("{} up to {}", kind, most) : kind;
}

/// Numbers in [least, most], which a double never leaves for infinity or NaN.
template <typename T>
Read<T> number(T least = std::numeric_limits<T>::lowest(), T most = std::numeric_limits<T>::max()) {
  return [=](const std::string& option, const std::string& text) {
    T value{};
    const char* end = text.data() + text.size();
    const auto [stopped, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc() && stopped == end && value >= least && value <= most) return value;
    fail(ExitCode::kUsage, "{}: expected {}, but got \"{}\"", option, expected_numbers(least, most), text);
  };
}

inline Read<int64_t> whole(int64_t least, int64_t most = int64_t{1} << 32) {
  return number<int64_t>(least, most);
}

inline Read<std::string> any_text() {
  return [](const std::string&, const std::string& text) { return text; };
}

/// Values separated by commas, at least one.
template <typename T>
Read<std::vector<T>> list(const Read<T>& read) {
  return [=](const std::string& option, const std::string& text) {
    std::vector<T> values;
    for (size_t first = 0, end = 0; end != std::string::npos; first = end + 1) {
      end = text.find(',', first);
      values.push_back(read(option, text.substr(first, end - first)));
    }
    return values;
  };
}

template <typename T>
std::string shown(const T& value) {
  return fmt::format("{}", value);
}

template <typename T>
std::string shown(const std::vector<T>& values) {
  return fmt::format("{}", fmt::join(values, ","));
}

/// What the help calls a value, by its type.
template <typename T>
std::string value_name(const T*) {
  return std::is_integral_v<T> ? "N" : std::is_floating_point_v<T> ? "X" : "NAME";
}

template <typename T>
std::string value_name(const std::vector<T>*) {
  return value_name(static_cast<const T*>(nullptr)) + ",...";
}

/// An option whose text `read` understands; help shows the value that it has now.
template <typename T, typename Value = T>
CLI::Option* add_value(CLI::App& command, const std::string& name, Value& value, const Read<T>& read,
                       const std::string& help) {
  const auto take = [&value, name, read](const std::string& text) { value = read(name, text); };
  CLI::Option* option =
      command.add_option_function<std::string>(name, take, help)->type_name(value_name(static_cast<const T*>(nullptr)));
  if constexpr (std::is_same_v<T, Value>) option->default_str(shown(value));
  return option;
}

/// Any number of its type.
template <typename T>
CLI::Option* add_number(CLI::App& command, const std::string& name, T& value, const std::string& help) {
  return add_value(command, name, value, number<T>(), help);
}

/// A number that may be absent.
template <typename T>
CLI::Option* add_number(CLI::App& command, const std::string& name, std::optional<T>& value, const std::string& help) {
  return add_value(command, name, value, number<T>(), help);
}

/// Numbers separated by commas.
template <typename T>
CLI::Option* add_numbers(CLI::App& command, const std::string& name, std::vector<T>& values, const std::string& help) {
  return add_value(command, name, values, list(number<T>()), help);
}

}  // namespace tamis::cli
