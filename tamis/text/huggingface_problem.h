#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace tamis::text {

/// Why Hugging Face's library refuses this tokenizer.json, in plain words that name the part: an unknown type, a
/// missing setting. `message` is what the library says, which is quoted where nothing better is found.
std::string tokenizer_problem(std::string_view json, std::string_view message);

/// What the library must not be given, because it would allocate gigabytes for a small file; empty if there is nothing.
/// A `precompiled_charsmap` of a normalizer is base64 and begins with the bytes of its trie in 32 bits, which the
/// library reserves before it looks at the data.
std::string oversized_part(const nlohmann::json& file);

}  // namespace tamis::text
