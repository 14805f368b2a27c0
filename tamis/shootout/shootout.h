#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <string>

#include "tamis/shootout/options.h"

namespace tamis::shootout {

/// Runs what a recipe compares, or goes on with it, and writes into its directory, after every job:
///
///   MIXER/lr-L-seed-S/  runs, as `tamis train` and `tamis eval` leave them, and their results
///   shootout.json       all results; table.md the tables of it; report.html the same to look at
///
/// Returns the tables, or with options.plan what would be done; with options.json both as one line of JSON: the content
/// of shootout.json, or {"dir", "tokens", "search_tokens", "jobs", "mixers": [{"name", "parameters",
/// "parameters_without_embedding", "model", "jobs"}]}; of options.only what run_job returns. Progress goes to
/// `messages`. Throws tamis::Error: what load_shootout and train() throw, but diverged runs, which are results.
std::string run_shootout(const ShootoutOptions& options, at::Device device, std::FILE* messages);

}  // namespace tamis::shootout
