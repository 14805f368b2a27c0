#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tamis/report/options.h"

namespace tamis::report {

struct WrittenReport {
  std::filesystem::path path;
  std::vector<std::string> left_out;  // parts that could not be made, and why
};

/// Writes the report of the first run, finished or not, with the others compared: what a run does not have yet is left
/// out. Throws ExitCode::kInput when one of them is not a run directory or the first one's checkpoint is damaged,
/// ExitCode::kStorage when the report cannot be written.
WrittenReport write_report(const ReportOptions& options, at::Device device = at::kCPU);

}  // namespace tamis::report
