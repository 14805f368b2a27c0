#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

// All JSON is parsed here. nlohmann's own parser accepts a byte order mark, takes a NUL for the end of the text, keeps
// only one of two equal keys, and has no limit on nesting, so that copying or printing the value can overflow the
// stack.

namespace tamis {

inline constexpr int kMostJsonLevels = 64;

/// Throws ExitCode::kInput, with `where` in front and one line in all, when `text` is not JSON in UTF-8, begins with a
/// byte order mark, holds a NUL, nests deeper than `most_levels` of objects and lists, or has a key twice in an object.
nlohmann::json parse_json(std::string_view text, std::string_view where, int most_levels = kMostJsonLevels);

/// The same for optional content: a discarded value (`is_discarded()`, neither object nor list) where parse_json would
/// throw.
nlohmann::json try_parse_json(std::string_view text);

/// The whole file, of at most 16 MiB. Throws ExitCode::kInput.
nlohmann::json read_json(const std::filesystem::path& file, int most_levels = kMostJsonLevels);

/// The object in the file; none when it is missing or does not hold one.
std::optional<nlohmann::json> try_read_object(const std::filesystem::path& file);

/// `value` and a newline, in one line or indented by `indent`. Strings may hold any bytes: invalid UTF-8 becomes
/// U+FFFD.
std::string json_text(const nlohmann::json& value, int indent = -1);

/// Streams an object key by key, or a list entry by entry: calls `take` with each item once it is complete. Linear
/// time; memory for the largest item. Throws like parse_json, when `text` is not an object or a list, and when an item
/// holds more than 100,000 values.
void parse_json_object(std::string_view text, std::string_view where, int most_levels,
                       const std::function<void(const std::string& key, const nlohmann::json& value)>& take);
void parse_json_list(std::string_view text, std::string_view where, int most_levels,
                     const std::function<void(const nlohmann::json& value)>& take);

/// The string at `key`, or `fallback` when there is no string (nlohmann's value() throws for a number).
std::string text_at(const nlohmann::json& object, const char* key, std::string_view fallback = "");

/// `value` for names and directories: a string without quotes, a number as in JSON.
std::string plain_text(const nlohmann::json& value);

/// A value for use in a message: a string as quoted_name() gives it, anything else as JSON cut to about 80 bytes.
std::string shown(const nlohmann::json& value);

}  // namespace tamis
