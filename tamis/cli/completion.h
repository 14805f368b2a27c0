#pragma once

#include <string>

#include "tamis/cli/synopsis.h"

namespace tamis::cli {

/// A script with which `shell` (bash, zsh, fish) completes the commands below `program`, their options, and what the
/// options and arguments take. Throws ExitCode::kUsage for another shell.
std::string completion_script(const CommandSynopsis& program, const std::string& shell);

}  // namespace tamis::cli
