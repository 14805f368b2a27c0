#pragma once

#include <string>
#include <string_view>

namespace tamis::text {

/// `bytes` with each maximal invalid sequence replaced by one U+FFFD, as the Unicode standard recommends and browsers
/// do. Overlong forms, surrogates and values beyond U+10FFFF are invalid.
std::string valid_utf8(std::string_view bytes);

/// Converts bytes that arrive in pieces to valid UTF-8. An incomplete character at the end is kept for the next call.
///
///   push("\xc3") == "", push("\xa9!") == "é!"
class Utf8Stream {
 public:
  /// The characters that `bytes` completes.
  std::string push(std::string_view bytes);
  /// U+FFFD when an incomplete character is pending, else nothing.
  std::string finish();

 private:
  std::string pending_;
};

}  // namespace tamis::text
