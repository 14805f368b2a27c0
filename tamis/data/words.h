#pragma once

#include <string>

#include "tamis/base/random.h"

namespace tamis::data {

/// An adjective and a noun, such as `quick-lantern`: one of 104,252 lower-case names for the keys of needles. Draws are
/// independent, so names may repeat.
std::string draw_word(Random& random);

/// A placeholder with the length of the longest such name.
std::string longest_word();

}  // namespace tamis::data
