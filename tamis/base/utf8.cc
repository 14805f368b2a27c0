#include "tamis/base/utf8.h"

namespace tamis {
namespace {

uint8_t byte_at(std::string_view text, size_t index) {
  return static_cast<uint8_t>(text[index]);
}

}  // namespace

/// Table 3-7 of the Unicode standard: the lead byte determines the length and the range of the second byte; later bytes
/// are in 80..BF.
Utf8Front utf8_front(std::string_view text) {
  using Kind = Utf8Front::Kind;
  const uint8_t lead = byte_at(text, 0);
  if (lead < 0x80) return {Kind::kCharacter, 1, lead};
  if (lead < 0xc2 || lead > 0xf4) return {Kind::kInvalid, 1};
  const size_t length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  const uint8_t second_low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const uint8_t second_high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  uint32_t code_point = lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {Kind::kIncomplete, i};
    const uint8_t low = i == 1 ? second_low : 0x80;
    const uint8_t high = i == 1 ? second_high : 0xbf;
    if (byte_at(text, i) < low || byte_at(text, i) > high) return {Kind::kInvalid, i};
    code_point = code_point << 6 | (byte_at(text, i) & 0x3fu);
  }
  return {Kind::kCharacter, length, code_point};
}

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const Utf8Front front = utf8_front(text);
    if (front.kind != Utf8Front::Kind::kCharacter) return false;
    text.remove_prefix(front.bytes);
  }
  return true;
}

}  // namespace tamis
