#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tamis/report/options.h"

namespace tamis::report {

struct WrittenReport {
  std::filesystem::path path;
  std::vector<std::string> left_out;  // missing parts, each with the reason
};

/// Writes the report of the first run, compared with the others. Runs need not be finished; the report omits what they
/// do not have yet. Throws ExitCode::kInput when a path is not a run directory or the first run's checkpoint is
/// damaged, ExitCode::kStorage when the report cannot be written.
WrittenReport write_report(const ReportOptions& options, at::Device device = at::kCPU);

}  // namespace tamis::report
