#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

// The only readers of JSON that somebody else wrote. nlohmann's own parser accepts a byte order mark, takes a NUL for
// the end of the text, keeps one of two equal keys, and nests without limit, which overflows the stack of whoever
// prints or copies the value.

namespace tamis {

inline constexpr int kMostJsonLevels = 64;

/// Throws ExitCode::kInput, with `where` in front and one line in all, when `text` is not JSON in UTF-8, begins with a
/// byte order mark, holds a NUL, nests deeper than `most_levels` of objects and lists, or has a key twice in an object.
nlohmann::json parse_json(std::string_view text, std::string_view where, int most_levels = kMostJsonLevels);

/// A discarded value (`is_discarded()`, no object, no list) where parse_json throws: for what can do without.
nlohmann::json try_parse_json(std::string_view text);

/// The whole file, of at most 16 MiB. Throws ExitCode::kInput.
nlohmann::json read_json(const std::filesystem::path& file, int most_levels = kMostJsonLevels);

/// Parses one object key by key, or one list entry by entry, in linear time and in the memory of its largest value:
/// each is handed over as it ends. Throws like parse_json, when `text` holds something else, and when a value has more
/// than 100,000 values inside.
void parse_json_object(std::string_view text, std::string_view where, int most_levels,
                       const std::function<void(const std::string& key, const nlohmann::json& value)>& take);
void parse_json_list(std::string_view text, std::string_view where, int most_levels,
                     const std::function<void(const nlohmann::json& value)>& take);

/// The string at `key`, or `fallback` where `object` has none (nlohmann's value() throws where it has a number).
std::string text_at(const nlohmann::json& object, const char* key, std::string_view fallback = "");

/// A value as it may stand in a message: a string like quoted_name(), anything else as JSON of at most some 80 bytes.
std::string shown(const nlohmann::json& value);

}  // namespace tamis
