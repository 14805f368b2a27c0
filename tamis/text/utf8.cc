#include "tamis/text/utf8.h"

#include <utility>

#include "tamis/base/utf8.h"

namespace tamis::text {
namespace {

constexpr std::string_view kReplacement = "\xef\xbf\xbd";  // U+FFFD

}  // namespace

std::string Utf8Stream::push(std::string_view bytes) {
  pending_ += bytes;
  std::string valid;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Front front = utf8_front(rest);
    if (front.kind == Utf8Front::Kind::kIncomplete) break;
    valid += front.kind == Utf8Front::Kind::kCharacter ? rest.substr(0, front.bytes) : kReplacement;
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
