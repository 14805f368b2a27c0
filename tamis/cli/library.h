#pragma once

#include "tamis/commands/options.h"

namespace tamis::cli {

/// Runs a command: checks its options, then opens the library of the commands, which lies beside the program, and lets
/// it work. Only here does the process get LibTorch. Throws ExitCode::kUsage when the options cannot be,
/// ExitCode::kRuntime when the library is missing or of no use, and what the command throws.
void run(const commands::Command& command);

}  // namespace tamis::cli
