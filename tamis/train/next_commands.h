#pragma once

#include <string>
#include <vector>

#include "tamis/train/recipe.h"

namespace tamis::train {

/// What to do with a trained run, as command lines for a shell: evaluate it on what it was trained on, continue its
/// sample prompt, write its report.
std::vector<std::string> next_commands(const Recipe& recipe);

/// `text` as one word of a POSIX shell; with $'...' where it holds control characters.
std::string shell_word(const std::string& text);

}  // namespace tamis::train
