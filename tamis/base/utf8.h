#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tamis {

/// What the bytes at the front of a text are.
struct Utf8Front {
  enum class Kind { kCharacter, kInvalid, kIncomplete } kind;
  size_t bytes;             // of the character, of the maximal invalid part, or all that are left
  uint32_t code_point = 0;  // of a character
};

/// `text` must not be empty. Overlong forms, surrogates and values beyond U+10FFFF are invalid.
Utf8Front utf8_front(std::string_view text);

/// True when all of `text` is valid UTF-8.
bool is_utf8(std::string_view text);

}  // namespace tamis
