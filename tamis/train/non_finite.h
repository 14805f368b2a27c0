#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace tamis::train {

/// The steps of a run whose loss or gradient was not finite, and the steps that are left out after a return to a
/// checkpoint. Part of the training state, so that a resumed run continues in the same way.
struct NonFiniteSteps {
  /// First and last step of a range whose batches are not trained on.
  struct Range {
    int64_t first = 0, last = 0;
    bool operator==(const Range&) const = default;
  };

  std::vector<int64_t> steps = {};   // numbers as in messages, from 1, in the order of their discovery
  std::vector<Range> left_out = {};  // one for each return to a checkpoint

  bool is_left_out(int64_t step) const {
    return std::ranges::any_of(left_out,
                               [step](const Range& range) { return range.first <= step && step <= range.last; });
  }
  bool operator==(const NonFiniteSteps&) const = default;
};

/// What happens at a step whose loss or gradient is not finite.
enum class NonFiniteAction {
  kSkip,    // the first one: no update
  kGoBack,  // the second within kNonFiniteSpan steps: continue from the last checkpoint, without the batches from the
            // first to the second
  kStop,    // the third: exit 20
};

/// Non-finite steps that are at most this many steps apart belong together.
inline constexpr int64_t kNonFiniteSpan = 100;

/// Records the step and decides; depends on the recorded steps alone. A step that was skipped before, and is met again
/// after a return to a checkpoint, is skipped again. `updated`: the update made the model non-finite,
/// so that there is no use in a skip, and the first one goes back already.
NonFiniteAction record_non_finite(NonFiniteSteps& history, int64_t step, bool updated = false);

}  // namespace tamis::train
