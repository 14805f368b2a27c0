#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tamis::shootout {

struct ShootoutOptions {
  std::filesystem::path recipe;        // a TOML file (docs/shootout.md)
  std::vector<std::string> overrides;  // `train.steps=500`
  bool plan = false;                   // only say what would be done
  std::string only;                    // this job alone, by its name in the plan; empty: all
  bool json = false;                   // what is returned is JSON
  int64_t jobs = 1;                    // at a time, each a process of its own when there are several
};

/// Throws ExitCode::kUsage when an option cannot be.
void check_options(const ShootoutOptions& options);

}  // namespace tamis::shootout
