#include "tamis/study/options.h"

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::study {

const std::vector<std::string>& tiers() {
  static const std::vector<std::string> kTiers = {"cpu", "gpu", "paper"};
  return kTiers;
}

void check_options(const StudyOptions& options) {
  if (options.jobs < 1) fail(ExitCode::kUsage, "--jobs must be at least 1, but is {}", options.jobs);
  if (std::ranges::find(tiers(), options.tier) == tiers().end()) {
    throw Error(ExitCode::kUsage, "--tier: " + unknown_name("tier", options.tier, tiers()));
  }
}

}  // namespace tamis::study
