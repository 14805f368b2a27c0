#pragma once

#include <string>
#include <string_view>

namespace tamis::text {

/// `bytes` with everything that is not valid UTF-8 replaced by U+FFFD, one per maximal invalid part (the Unicode
/// standard's recommendation, what browsers do). Overlong forms, surrogates and values beyond U+10FFFF are invalid.
std::string valid_utf8(std::string_view bytes);

/// Makes valid UTF-8 out of bytes that arrive in pieces: what may still become a character is held back.
///
///   push("\xc3") == "", push("\xa9!") == "é!"
class Utf8Stream {
 public:
  /// The characters completed so far that were not returned before.
  std::string push(std::string_view bytes);
  /// What was held back, as it is now never completed.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace tamis::text
