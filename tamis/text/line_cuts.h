#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace tamis::text {

inline constexpr std::string_view kAsciiAlphanumeric = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Where texts may be cut: those letters and digits c of kAsciiAlphanumeric for which every text a + b, where a ends
/// with c and b begins with \n or \r, has the ids of a followed by those of b.
///
/// Follows from the parts of `tokenizer`, the contents of a tokenizer.json: no added token, word or merge may reach
/// across the cut, and no part may depend on what is behind it. Empty for parts of which this is not known: they are
/// expressions for words other than the published ones, and all parts that treat the beginning of a text differently.
std::string letters_before_cuts(const nlohmann::json& tokenizer);

}  // namespace tamis::text
