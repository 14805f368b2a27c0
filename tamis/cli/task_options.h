#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "tamis/data/task.h"

namespace tamis::cli {

/// Adds `--haystack`, where the task uses one, and an option for each setting of the task. `settings` gets their
/// defaults.
void add_task_options(CLI::App& command, const data::Task& task, data::Settings& settings,
                      std::filesystem::path& haystack);

/// The summary of the task in help texts: `A number of five digits between lines of filler.`
std::string summary_of(const data::Task& task);

/// ` --haystack essays.txt` for the example of a task that requires one, else empty.
std::string example_haystack(const data::Task& task);

}  // namespace tamis::cli
