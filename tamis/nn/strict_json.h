#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace tamis::nn {

/// Parses JSON that somebody else wrote. Throws ExitCode::kInput, with `where` in front, when it is not valid JSON or
/// UTF-8, when an object has a key twice (a plain parser keeps one of them silently), or when it nests deeper than
/// `most_levels` of objects and arrays.
nlohmann::json parse_strict_json(std::string_view text, const std::string& where, int most_levels);

/// A name from a file as it may appear in a message: quoted, escaped, cut to 80 characters.
std::string quoted(const std::string& name);

}  // namespace tamis::nn
