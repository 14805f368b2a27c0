#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "tamis/base/error.h"

// Options whose values are numbers. CLI11's own conversion also accepts 0x10 and nan, reads 010 as 8, replaces numbers
// that are too large by the largest, and drops empty items of a list. Here the whole text has to be a decimal number
// within limits; anything else throws ExitCode::kUsage. Lists of choices are read in the same way
// (tamis/bench/options.h), because CLI::IsMember does not name the nearest choice.

namespace tamis::cli {

/// The numbers that an option accepts, both ends included.
template <typename T>
struct Limits {
  T least = std::numeric_limits<T>::lowest();
  T most = std::numeric_limits<T>::max();
};

inline Limits<int64_t> whole(int64_t least, int64_t most = int64_t{1} << 32) {
  return {least, most};
}

/// `whole numbers from 1 to 64`; a lower limit is left out where it is that of the type.
template <typename T>
std::string expected_numbers(const Limits<T>& limits) {
  const char* kind = std::is_integral_v<T> ? "whole numbers" : "numbers";
  if (std::is_unsigned_v<T> || limits.least > std::numeric_limits<T>::lowest()) {
    return fmt::format("{} from {} to {}", kind, limits.least, limits.most);
  }
  const bool limited = limits.most < std::numeric_limits<T>::max() || std::is_integral_v<T>;
  return limited ? fmt::format("{} up to {}", kind, limits.most) : kind;
}

/// The number that `text`, the value of `option`, holds. NaN and infinity lie within no limits.
template <typename T>
T read_number(const std::string& option, const std::string& text, const Limits<T>& limits) {
  T value{};
  const char* end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc() && stopped == end && value >= limits.least && value <= limits.most) return value;
  fail(ExitCode::kUsage, "{}: expected {}, but got \"{}\"", option, expected_numbers(limits), text);
}

/// What the help calls a number of this type.
template <typename T>
const char* number_name() {
  return std::is_integral_v<T> ? "N" : "X";
}

/// A number; the help shows its present value as the default.
template <typename T>
CLI::Option* add_number(CLI::App& command, const std::string& name, T& value, const std::string& help,
                        const std::type_identity_t<Limits<T>>& limits = {}) {
  const auto take = [&value, name, limits](const std::string& text) { value = read_number<T>(name, text, limits); };
  return command.add_option_function<std::string>(name, take, help)
      ->type_name(number_name<T>())
      ->default_str(fmt::format("{}", value));
}

/// A number that may be absent.
template <typename T>
CLI::Option* add_number(CLI::App& command, const std::string& name, std::optional<T>& value, const std::string& help) {
  const auto take = [&value, name](const std::string& text) { value = read_number<T>(name, text, {}); };
  return command.add_option_function<std::string>(name, take, help)->type_name(number_name<T>());
}

/// Numbers separated by commas, at least one.
template <typename T>
CLI::Option* add_numbers(CLI::App& command, const std::string& name, std::vector<T>& values, const std::string& help,
                         const std::type_identity_t<Limits<T>>& limits = {}) {
  const auto take = [&values, name, limits](const std::string& text) {
    values.clear();
    for (size_t first = 0, end = 0; end != std::string::npos; first = end + 1) {
      end = text.find(',', first);
      values.push_back(read_number<T>(name, text.substr(first, end - first), limits));
    }
  };
  return command.add_option_function<std::string>(name, take, help)
      ->type_name(fmt::format("{},...", number_name<T>()))
      ->default_str(fmt::format("{}", fmt::join(values, ",")));
}

/// Names separated by commas.
inline CLI::Option* add_names(CLI::App& command, const std::string& name, std::vector<std::string>& names,
                              const std::string& help) {
  return command.add_option(name, names, help)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("NAME,...")
      ->default_str(fmt::format("{}", fmt::join(names, ",")));
}

}  // namespace tamis::cli
