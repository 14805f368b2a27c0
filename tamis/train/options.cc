#include "tamis/train/options.h"

#include "tamis/base/error.h"

namespace tamis::train {

std::pair<std::string, std::string> split_override(const std::string& assignment) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos || equals == 0) {
    fail(ExitCode::kUsage, "--set {}: expected key=value, like --set train.lr=0.0625", assignment);
  }
  return {assignment.substr(0, equals), assignment.substr(equals + 1)};
}

void check_options(const TrainOptions& options) {
  for (const std::string& each : options.overrides) split_override(each);
  if (options.trace_steps < 1)
    fail(ExitCode::kUsage, "--trace-steps must be at least 1, but is {}", options.trace_steps);
}

}  // namespace tamis::train
