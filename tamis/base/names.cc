#include "tamis/base/names.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <vector>

#include "tamis/base/utf8.h"

namespace tamis {
namespace {

constexpr size_t kMostComparedBytes = 64;  // the edit distance takes quadratic time
constexpr size_t kMostNameBytes = 80;

/// Characters that move the cursor, reorder text or have no width.
bool is_invisible(uint32_t code_point) {
  const auto in = [&](uint32_t first, uint32_t last) { return code_point >= first && code_point <= last; };
  return in(0x00, 0x1f) || in(0x7f, 0x9f) || in(0x200b, 0x200f) || in(0x2028, 0x202e) || in(0x2060, 0x206f) ||
         code_point == 0xfeff || in(0xe0000, 0xe007f);
}

std::string escape(uint32_t code_point) {
  if (code_point == '\n') return "\\n";
  if (code_point == '\r') return "\\r";
  if (code_point == '\t') return "\\t";
  return fmt::format("\\u{:04x}", code_point);
}

/// Escapes invisible characters, invalid UTF-8 and the characters in `marks`; cuts the result to `most_bytes`.
std::string escaped(std::string_view text, size_t most_bytes, std::string_view marks) {
  std::string result;
  while (!text.empty()) {
    const Utf8Front front = utf8_front(text);
    const std::string_view bytes = text.substr(0, front.bytes);
    std::string piece(bytes);
    if (front.kind != Utf8Front::Kind::kCharacter) {
      piece.clear();
      for (const unsigned char byte : bytes) piece += fmt::format("\\x{:02x}", byte);
    } else if (is_invisible(front.code_point)) {
      piece = escape(front.code_point);
    } else if (marks.find(bytes) != std::string_view::npos) {
      piece = "\\" + piece;
    }
    if (result.size() + piece.size() > most_bytes) break;
    result += piece;
    text.remove_prefix(front.bytes);
  }
  return text.empty() ? result : result + "...";
}

}  // namespace

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> distance(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        distance[i][j] = static_cast<int>(std::max(i, j));
        continue;
      }
      const int replaced = distance[i - 1][j - 1] + (a[i - 1] != b[j - 1]);
      distance[i][j] = std::min({distance[i - 1][j] + 1, distance[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        distance[i][j] = std::min(distance[i][j], distance[i - 2][j - 2] + 1);
      }
    }
  }
  return distance[a.size()][b.size()];
}

std::string unknown_name(std::string_view kind, std::string_view name, std::span<const std::string> known) {
  const std::string* nearest = nullptr;
  int least = std::max<int>(1, static_cast<int>(std::min(name.size(), kMostComparedBytes)) / 3) + 1;
  for (const std::string& candidate : known) {
    if (name.size() > kMostComparedBytes || candidate.size() > kMostComparedBytes) continue;
    const int distance = edit_distance(name, candidate);
    if (distance >= least) continue;
    least = distance;
    nearest = &candidate;
  }
  return fmt::format("unknown {} {}{} Known: {}", kind, quoted_name(name),
                     nearest == nullptr ? "." : fmt::format("; did you mean \"{}\"?", *nearest),
                     fmt::join(known, ", "));
}

bool is_plain(std::string_view name) {
  constexpr size_t kMostPlainBytes = 64;
  const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '_' || c == '-' || c == '.' || c == '+'; };
  return !name.empty() && name.size() <= kMostPlainBytes && name[0] != '.' && std::ranges::all_of(name, plain);
}

std::string quoted_name(std::string_view name) {
  return '"' + escaped(name, kMostNameBytes, "\"\\") + '"';
}

std::string one_line(std::string_view text, size_t most_bytes) {
  return escaped(text, most_bytes, "");
}

}  // namespace tamis
