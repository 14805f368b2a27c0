#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "tamis/commands/options.h"

namespace tamis::cli {

/// `--threads` and `--device`.
void add_run_options(CLI::App& command, commands::RunOptions& options);

/// `--set-model KEY=VALUE`.
void add_set_model_option(CLI::App& command, std::vector<std::string>& changes);

/// `--weights float32 | bfloat16 | int8`.
void add_weights_option(CLI::App& command, infer::WeightFormat& weights);

/// `--json`.
void add_json_option(CLI::App& command, bool& json);

/// Refuses any first word that is no subcommand: `unknown task "abc_digit"; did you mean "abc_digits"?`.
void refuse_other_names(CLI::App& app, const std::string& kind);

}  // namespace tamis::cli
