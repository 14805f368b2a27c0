#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tamis::report {

struct ReportOptions {
  std::filesystem::path run;        // run directory, as `tamis train` writes it
  std::filesystem::path output;     // empty: report.html in it
  std::optional<std::string> text;  // for the relevance maps; none: an example of the run's validation data
  int64_t most_tokens = 512;        // of the text, from its beginning
  at::Device device = at::kCPU;
};

struct WrittenReport {
  std::filesystem::path path;
  std::vector<std::string> left_out;  // parts that could not be made, and why
};

/// Writes the report of a run, finished or not: what the run does not have yet is left out.
/// Throws ExitCode::kInput when `run` is not a run directory or its checkpoint is damaged, ExitCode::kStorage when the
/// report cannot be written.
WrittenReport write_report(const ReportOptions& options);

}  // namespace tamis::report
