#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "tamis/cli/synopsis.h"

namespace tamis::cli {

/// Makes `app` and all its commands print the help of this file.
void use_help(CLI::App& app);

/// What `--help` prints: summary, usage, arguments, commands, options, environment, examples; no line longer than
/// `columns`, except for a single word. `colour` makes the headings bold.
std::string help_text(const CommandSynopsis& command, int columns, bool colour);

/// The command that `words` name below `app`. Throws ExitCode::kUsage with the nearest known name.
const CLI::App& find_command(const CLI::App& app, const std::vector<std::string>& words);

/// The names of a command and those above it: "tamis eval loss".
std::string path_of(const CLI::App& app);

/// Columns for text on standard output: COLUMNS where it is set, else the terminal's, else 80.
int text_columns();

/// Prints the help of a command to standard output.
void print_help(const CLI::App& app);

}  // namespace tamis::cli
