#include "tamis/train/non_finite.h"

#include <algorithm>
#include <cstdlib>

namespace tamis::train {

NonFiniteAction record_non_finite(NonFiniteSteps& history, int64_t step, bool updated) {
  if (!updated && std::ranges::find(history.steps, step) != history.steps.end()) return NonFiniteAction::kSkip;
  // The steps that belong together with this one: each at most kNonFiniteSpan away from the next.
  int64_t together = 1, last = step;
  for (auto each = history.steps.rbegin(); each != history.steps.rend(); ++each) {
    if (std::abs(last - *each) > kNonFiniteSpan) break;
    last = *each;
    ++together;
  }
  history.steps.push_back(step);
  if (together == 1 && !updated) return NonFiniteAction::kSkip;
  if (together > 2) return NonFiniteAction::kStop;
  history.left_out.push_back({std::min(last, step), std::max(last, step)});
  return NonFiniteAction::kGoBack;
}

}  // namespace tamis::train
