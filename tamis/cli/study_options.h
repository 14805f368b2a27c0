#pragma once

#include <CLI/CLI.hpp>

#include "tamis/cli/common.h"
#include "tamis/study/options.h"

namespace tamis::cli {

/// What `study` and `repro` have in common: --set, --tier, --plan, --jobs, --json and those of a run.
void add_study_options(CLI::App& command, study::StudyOptions& options, RunOptions& run);

/// Checks the options of the run; --threads becomes a setting of the recipe.
void set_threads(study::StudyOptions& options, const RunOptions& run);

/// Checks the options, runs the study and prints what it returns.
void run_study(study::StudyOptions options, const RunOptions& run);

}  // namespace tamis::cli
