#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tamis::train {

struct TrainOptions {
  std::filesystem::path recipe;        // a TOML file
  std::vector<std::string> overrides;  // `train.lr=0.0625`
  bool fresh = false;                  // start a new run; an existing one is kept under another name
  std::filesystem::path trace;         // write a trace of some steps here (trace.h); empty: none
  int64_t trace_steps = 3;             // steps of the trace
};

/// Splits an override into key and value. Throws ExitCode::kUsage unless it has the form `key=value`.
std::pair<std::string, std::string> split_override(const std::string& assignment);

/// Throws ExitCode::kUsage for a malformed override.
void check_options(const TrainOptions& options);

}  // namespace tamis::train
