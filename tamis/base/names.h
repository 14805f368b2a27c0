#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tamis {

/// `unknown model "multiscren"; did you mean "multiscreen"? Known: multiscreen, swax`. The guess is left out when no
/// known name is near, or when the name is too long to be a typing error. The name may hold any bytes: see
/// quoted_name().
std::string unknown_name(std::string_view kind, std::string_view name, std::span<const std::string> known);

/// A name that comes from a file or from the command line, as it may stand in a message: between quotes, with quotes,
/// backslashes, control and invisible characters and invalid UTF-8 escaped, and cut to some 80 bytes.
std::string quoted_name(std::string_view name);

/// `text` as one line for a terminal: what quoted_name() escapes is escaped, except quotes and backslashes, and a text
/// of more than 4,000 bytes is cut.
std::string one_line(std::string_view text);

/// Number of single-character edits (insert, delete, replace, swap of neighbours) between two names.
int edit_distance(std::string_view a, std::string_view b);

}  // namespace tamis
