#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "tamis/data/task.h"

namespace tamis::cli {

/// `--haystack`, where the task has a use for one, and an option for each of its settings, which become those it has.
void add_task_options(CLI::App& command, const data::Task& task, data::Settings& settings,
                      std::filesystem::path& haystack);

/// What a command about the task says of it: `A number of five digits between lines of filler.`
std::string summary_of(const data::Task& task);

/// ` --haystack essays.txt` for the example of a task that needs one, else nothing.
std::string example_haystack(const data::Task& task);

}  // namespace tamis::cli
