#pragma once

#include <CLI/CLI.hpp>

namespace tamis::cli {

/// Adds every command to the program: one line per command in commands.cc, one file per command.
void add_commands(CLI::App& app);

}  // namespace tamis::cli
