#pragma once

#include <string>

#include "tamis/base/random.h"

namespace tamis::data {

/// An adjective and a noun, `quick-lantern`: one of 104,252 names in lower case for what a prompt hides. Drawn
/// independently, so names may repeat.
std::string draw_word(Random& random);

/// As long as the longest of them.
std::string longest_word();

}  // namespace tamis::data
