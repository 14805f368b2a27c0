#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/base/random.h"
#include "tamis/data/task.h"

namespace tamis::data {

/// A line or sentence of a prompt. If it states an answer, `answer` is that answer's index and `span` its bytes in the
/// piece.
struct Piece {
  std::string text;
  int64_t answer = -1;
  ByteSpan span = {};
};

Piece plain_piece(std::string_view text);

/// Appends the pieces joined by `separator`, and stores the positions of their answers in `prompt` in `answer_spans`,
/// which must already have an entry for each answer.
void append_pieces(std::string& prompt, std::span<const Piece> pieces, std::string_view separator,
                   std::vector<ByteSpan>& answer_spans);

/// The number of bytes that append_pieces appends.
int64_t joined_bytes(std::span<const Piece> pieces, std::string_view separator);

/// A uniformly random number of `digits` digits without a leading 0.
std::string draw_number(Random& random, int64_t digits);

/// `count` different numbers in [0, limit), ascending; count <= limit.
std::vector<int64_t> draw_places(Random& random, int64_t count, int64_t limit);

/// All substrings between an occurrence of `before` and the next `after`, in order.
std::vector<std::string_view> all_between(std::string_view text, std::string_view before, std::string_view after);

/// The distinct values, sorted.
std::vector<std::string> distinct(std::span<const std::string_view> values);

/// 1 when there is one answer and the first run of digits in `said` equals it, else 0.
double first_number_matches(std::string_view said, std::span<const std::string> answers);

/// The share of the answers that `said` contains, ignoring the case of A-Z: string_match_all of lm-evaluation-harness.
double contained_share(std::string_view said, std::span<const std::string> answers);

}  // namespace tamis::data
