#pragma once

#include <ATen/core/Tensor.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/infer/decode.h"

namespace tamis::cli {

/// What every command that runs a model takes.
struct RunOptions {
  int64_t threads = 0;         // of ATen; 0: one per core
  std::string device = "cpu";  // cpu or cuda
};

/// `--threads` and `--device`.
void add_run_options(CLI::App& command, RunOptions& options);

/// `--weights float32 | bfloat16 | int8`.
void add_weights_option(CLI::App& command, infer::WeightFormat& weights);

/// `--json`.
void add_json_option(CLI::App& command, bool& json);

/// Refuses any first word that is no subcommand: `unknown task "abc_digit"; did you mean "abc_digits"?`.
void refuse_other_names(CLI::App& app, const std::string& kind);

/// Sets the number of threads and returns the device. Throws ExitCode::kUsage on a device that is unknown or that this
/// machine or build lacks.
at::Device start(const RunOptions& options);

/// One line of JSON; text in it that is not UTF-8 becomes U+FFFD.
std::string to_line(const nlohmann::json& json);

/// A progress line on stderr with the share done and the time left, for the `Progress` of a long evaluation. It is
/// cleared when the last copy goes.
std::function<void(double done, double total)> progress_with_eta(const std::string& what);

}  // namespace tamis::cli
