#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tamis {

/// The character, or the invalid or incomplete sequence, at the front of a text.
struct Utf8Front {
  enum class Kind { kCharacter, kInvalid, kIncomplete } kind;
  size_t bytes;             // length of the character, of the maximal invalid sequence, or of the rest of the text
  uint32_t code_point = 0;  // for kCharacter
};

/// `text` must not be empty. Overlong forms, surrogates and values beyond U+10FFFF are invalid.
Utf8Front utf8_front(std::string_view text);

/// True when all of `text` is valid UTF-8.
bool is_utf8(std::string_view text);

}  // namespace tamis
