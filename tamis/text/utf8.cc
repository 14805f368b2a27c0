#include "tamis/text/utf8.h"

#include <cstddef>
#include <cstdint>
#include <utility>

namespace tamis::text {
namespace {

/// What the bytes at the front of a text are.
struct Front {
  enum class Kind { kCharacter, kInvalid, kIncomplete } kind;
  size_t bytes;  // of the character, of the maximal invalid part, or all that are left
};

uint8_t byte_at(std::string_view text, size_t index) {
  return static_cast<uint8_t>(text[index]);
}

/// Table 3-7 of the Unicode standard: a lead byte fixes the length and the range of the second byte; all later ones are
/// 80..BF.
Front look_at_front(std::string_view text) {
  const uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return {Front::Kind::kCharacter, 1};
  if (lead < 0xc2 || lead > 0xf4) return {Front::Kind::kInvalid, 1};
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const uint8_t second_low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t second_high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Front::Kind::kIncomplete, i};
    const uint8_t low = i == 1 ? second_low : 0x80;
    const uint8_t high = i == 1 ? second_high : 0xbf;
    if (byte_at(text, i) < low || byte_at(text, i) > high) return {Front::Kind::kInvalid, i};
  }
  return {Front::Kind::kCharacter, length};
}

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string valid;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Front front = look_at_front(rest);
    if (front.kind == Front::Kind::kIncomplete) break;
    valid += front.kind == Front::Kind::kCharacter ? rest.substr(0, front.bytes) : kReplacement;
    rest.remove_prefix(front.bytes);
  }
  pending_ = std::string(rest);
  return valid;
}

std::string Utf8Stream::finish() {
  return std::exchange(pending_, {}).empty() ? "" : std::string(kReplacement);
}

std::string valid_utf8(std::string_view bytes) {
  Utf8Stream stream;
  std::string valid = stream.push(bytes);
  return valid + stream.finish();
}

}  // namespace tamis::text
