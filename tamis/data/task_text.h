#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/base/random.h"
#include "tamis/data/task.h"

namespace tamis::data {

/// One line or sentence of a prompt, and the answer in it, if any: number `answer`, at bytes [begin, end) of the piece.
struct Piece {
  std::string text;
  int64_t answer = -1;
  ByteSpan span = {};
};

Piece plain_piece(std::string_view text);

/// Appends the pieces, `separator` between them, and notes where in `prompt` the answers come to lie: answer_spans must
/// have room for them.
void append_pieces(std::string& prompt, std::span<const Piece> pieces, std::string_view separator,
                   std::vector<ByteSpan>& answer_spans);

/// The bytes of append_pieces.
int64_t joined_bytes(std::span<const Piece> pieces, std::string_view separator);

/// A number of `digits` digits, the first of them not 0.
std::string draw_number(Random& random, int64_t digits);

/// `count` different numbers in [0, limit), ascending; count <= limit.
std::vector<int64_t> draw_places(Random& random, int64_t count, int64_t limit);

/// What stands between `before` and the next `after`, each time it does, in order.
std::vector<std::string_view> all_between(std::string_view text, std::string_view before, std::string_view after);

/// Each once, sorted.
std::vector<std::string> distinct(std::span<const std::string_view> values);

/// 1 when the first run of digits in `said` is the one answer.
double first_number_matches(std::string_view said, std::span<const std::string> answers);

/// The share of the answers that `said` contains, whatever the case of A-Z: string_match_all of lm-evaluation-harness.
double contained_share(std::string_view said, std::span<const std::string> answers);

}  // namespace tamis::data
