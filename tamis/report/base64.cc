#include "tamis/report/base64.h"

#include <cstdint>

namespace tamis::report {

std::string base64(std::string_view bytes) {
  constexpr std::string_view kDigits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string result;
  result.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t present = bytes.size() - i < 3 ? bytes.size() - i : 3;
    uint32_t group = 0;
    for (size_t b = 0; b < 3; ++b) group = group << 8 | (b < present ? static_cast<uint8_t>(bytes[i + b]) : 0);
    for (size_t d = 0; d < 4; ++d) result += d <= present ? kDigits[group >> (18 - 6 * d) & 63] : '=';
  }
  return result;
}

}  // namespace tamis::report
