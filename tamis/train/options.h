#pragma once

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace tamis::train {

struct TrainOptions {
  std::filesystem::path recipe;        // a TOML file
  std::vector<std::string> overrides;  // `train.lr=0.0625`
  bool fresh = false;                  // begin anew; an existing run is kept under another name
};

/// Key and value of an override. Throws ExitCode::kUsage when there is no key before a `=`.
std::pair<std::string, std::string> split_override(const std::string& assignment);

/// Throws ExitCode::kUsage when an override is none.
void check_options(const TrainOptions& options);

}  // namespace tamis::train
