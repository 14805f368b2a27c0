#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <string>

#include "tamis/shootout/options.h"

namespace tamis::shootout {

/// Runs or resumes a comparison of mixers, and after every job writes into its directory:
///
///   MIXER/lr-L-seed-S/  runs, as `tamis train` and `tamis eval` leave them, and their results
///   shootout.json       all results; table.md  their tables; report.html  their report
///
/// Returns the tables or, with options.plan, the list of jobs. With options.json returns one line of JSON: the content
/// of shootout.json; with options.plan {"dir", "tokens", "search_tokens", "jobs", "mixers": [{"name", "parameters",
/// "parameters_without_embedding", "model", "matched_by", "jobs"}]}; with options.only the result of run_job. Progress
/// is written to `messages`. Throws like load_shootout and train(), except that a diverged run is a result.
std::string run_shootout(const ShootoutOptions& options, at::Device device, std::FILE* messages);

}  // namespace tamis::shootout
