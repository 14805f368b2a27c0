#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tamis::shootout {

struct ShootoutOptions {
  std::filesystem::path recipe;        // a TOML file (docs/shootout.md)
  std::vector<std::string> overrides;  // `train.steps=500`
  bool plan = false;                   // list the jobs without running them
  std::string only;                    // run only the job with this name of the plan; empty: all
  bool json = false;                   // return JSON
  int64_t jobs = 1;                    // jobs at a time; if more than one, each in its own process
};

/// Throws ExitCode::kUsage when an option is not allowed.
void check_options(const ShootoutOptions& options);

}  // namespace tamis::shootout
