#include "tamis/shootout/options.h"

#include "tamis/base/error.h"
#include "tamis/train/options.h"

namespace tamis::shootout {

void check_options(const ShootoutOptions& options) {
  for (const std::string& assignment : options.overrides) train::split_override(assignment);
  if (options.recipe == "-")
    fail(ExitCode::kUsage, "shootout: the recipe has to be a file, as every job reads it again");
  if (options.jobs < 1) fail(ExitCode::kUsage, "shootout: --jobs must be at least 1, but is {}", options.jobs);
}

}  // namespace tamis::shootout
