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
  std::optional<double> depth;  // of the needle, in [0, 1]; none: drawn for each instance
  uint64_t seed = 0;
  Settings settings;               // of this task; missing ones have the task's defaults
  std::filesystem::path haystack;  // text file; empty: none
};

/// Throws ExitCode::kUsage when the task is unknown, an option is out of range or the task does not have it.
void check_options(const GenerateOptions& options);

/// The request for each instance; `haystack` is the text of options.haystack, if there is one.
TaskRequest request_of(const GenerateOptions& options, const Haystack* haystack = nullptr);

}  // namespace tamis::data
