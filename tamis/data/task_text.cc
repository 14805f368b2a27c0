#include "tamis/data/task_text.h"

#include <algorithm>
#include <set>

namespace tamis::data {
namespace {

constexpr std::string_view kDigits = "0123456789";

std::string lower(std::string_view text) {
  std::string lowered(text);
  for (char& c : lowered) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return lowered;
}

}  // namespace

Piece plain_piece(std::string_view text) {
  return {.text = std::string(text)};
}

void append_pieces(std::string& prompt, std::span<const Piece> pieces, std::string_view separator,
                   std::vector<ByteSpan>& answer_spans) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i > 0) prompt += separator;
    const Piece& piece = pieces[i];
    const auto begin = static_cast<int64_t>(prompt.size());
    if (piece.answer >= 0) answer_spans[piece.answer] = {begin + piece.span.begin, begin + piece.span.end};
    prompt += piece.text;
  }
}

int64_t joined_bytes(std::span<const Piece> pieces, std::string_view separator) {
  size_t bytes = pieces.empty() ? 0 : (pieces.size() - 1) * separator.size();
  for (const Piece& piece : pieces) bytes += piece.text.size();
  return static_cast<int64_t>(bytes);
}

std::string draw_number(Random& random, int64_t digits) {
  uint64_t lowest = 1;
  for (int64_t i = 1; i < digits; ++i) lowest *= 10;
  return std::to_string(lowest + random.below(9 * lowest));
}

std::vector<int64_t> draw_places(Random& random, int64_t count, int64_t limit) {
  std::set<int64_t> places;
  while (static_cast<int64_t>(places.size()) < count) places.insert(static_cast<int64_t>(random.below(limit)));
  return {places.begin(), places.end()};
}

std::vector<std::string_view> all_between(std::string_view text, std::string_view before, std::string_view after) {
  std::vector<std::string_view> found;
  for (size_t at = text.find(before); at != text.npos; at = text.find(before, at + 1)) {
    const size_t begin = at + before.size();
    const size_t end = text.find(after, begin);
    if (end != text.npos) found.push_back(text.substr(begin, end - begin));
  }
  return found;
}

std::vector<std::string> distinct(std::span<const std::string_view> values) {
  const std::set<std::string> sorted(values.begin(), values.end());
  return {sorted.begin(), sorted.end()};
}

double first_number_matches(std::string_view said, std::span<const std::string> answers) {
  const size_t first = said.find_first_of(kDigits);
  if (first == said.npos) return 0;
  const std::string_view number = said.substr(first, said.find_first_not_of(kDigits, first) - first);
  return answers.size() == 1 && number == answers[0] ? 1 : 0;
}

double contained_share(std::string_view said, std::span<const std::string> answers) {
  const std::string lowered = lower(said);
  double contained = 0;
  for (const std::string& answer : answers) contained += lowered.find(lower(answer)) != lowered.npos;
  return contained / static_cast<double>(answers.size());
}

}  // namespace tamis::data
