#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tamis::study {

struct StudyOptions {
  std::filesystem::path recipe;        // a TOML file (docs/studies.md)
  std::vector<std::string> overrides;  // `train.steps=500`
  std::string tier = "cpu";            // "cpu": the recipe as it is; "gpu", "paper": with the changes of [tiers.NAME]
  std::string command;                 // what the page says is run; empty: `tamis study RECIPE`
  bool plan = false;                   // list the jobs without running them
  bool json = false;                   // return JSON
  int64_t jobs = 1;                    // jobs at a time; if more than one, each in its own process
  bool worker = false;                 // run jobs without writing a report: a process that --jobs started
};

/// The names of the tiers, the smallest first.
const std::vector<std::string>& tiers();

/// Throws ExitCode::kUsage when an option is not allowed.
void check_options(const StudyOptions& options);

}  // namespace tamis::study
