#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tamis {

/// `unknown model "multiscren"; did you mean "multiscreen"? Known: multiscreen, swax`. There is no suggestion when no
/// known name is close, or when the name is too long for a typing error. The name may hold any bytes: see
/// quoted_name().
std::string unknown_name(std::string_view kind, std::string_view name, std::span<const std::string> known);

/// Quotes a name from a file or the command line for use in a message: escapes quotes, backslashes, control and
/// invisible characters and invalid UTF-8, and cuts it to about 80 bytes.
std::string quoted_name(std::string_view name);

/// `text` as one line for a terminal: escaped like quoted_name(), except for quotes and backslashes, and cut to
/// `most_bytes`.
std::string one_line(std::string_view text, size_t most_bytes = 4000);

/// True for at most 64 letters, digits, ., +, - and _ that do not begin with a dot: such a name can be printed, and be
/// the name of a file or a key, as it is.
bool is_plain(std::string_view name);

/// Number of single-character edits (insertion, deletion, replacement, swap of neighbours) between two names. Takes
/// time and memory proportional to the product of the lengths.
int edit_distance(std::string_view a, std::string_view b);

}  // namespace tamis
