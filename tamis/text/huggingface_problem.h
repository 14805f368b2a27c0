#pragma once

#include <string>
#include <string_view>

namespace tamis::text {

/// Why Hugging Face's library refuses this tokenizer.json, in plain words that name the part: an unknown type, a
/// missing setting. `message` is what the library says, which is quoted where nothing better is found.
std::string tokenizer_problem(std::string_view json, std::string_view message);

}  // namespace tamis::text
