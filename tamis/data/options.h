#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tamis/data/task.h"

namespace tamis::data {

struct GenerateOptions {
  std::string task;
  int64_t length = 0;           // tokens of the prompt
  int64_t count = 10;           // instances
  std::optional<double> depth;  // of what is hidden, in [0, 1]; none: drawn for each instance
  uint64_t seed = 0;
  Settings settings;               // of this task; those missing are as the task has them
  std::filesystem::path haystack;  // text file; empty: none
};

/// Throws ExitCode::kUsage when the task is not known, an option is out of range or the task does not take it.
void check_options(const GenerateOptions& options);

/// What the options ask of each instance; `haystack` is the text of the file, if there is one.
TaskRequest request_of(const GenerateOptions& options, const Haystack* haystack = nullptr);

}  // namespace tamis::data
