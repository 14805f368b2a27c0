#pragma once

#include <span>
#include <string>
#include <string_view>

namespace tamis {

/// `unknown model "multiscren"; did you mean "multiscreen"? Known: multiscreen, swax`. The guess is left out when no
/// known name is near.
std::string unknown_name(std::string_view kind, std::string_view name, std::span<const std::string> known);

/// Number of single-character edits (insert, delete, replace, swap of neighbours) between two names.
int edit_distance(std::string_view a, std::string_view b);

}  // namespace tamis
