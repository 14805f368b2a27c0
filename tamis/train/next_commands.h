#pragma once

#include <string>
#include <vector>

#include "tamis/train/recipe.h"

namespace tamis::train {

/// Suggested command lines after training: evaluate the run on its training tasks, continue its sample prompt, write
/// its report.
std::vector<std::string> next_commands(const Recipe& recipe);

/// `text` quoted as one word of a POSIX shell; with $'...' if it contains control characters.
std::string shell_word(const std::string& text);

}  // namespace tamis::train
