#pragma once

#include <cstdint>
#include <vector>

namespace tamis::train {

/// The steps of a run whose loss or gradient was not finite, and the steps that are left out after a return to a
/// checkpoint. Part of the training state, so that a resumed run continues in the same way.
struct NonFiniteSteps {
  std::vector<int64_t> steps = {};                // numbers as in messages, from 1, in the order of their discovery
  int64_t left_out_first = 0, left_out_last = 0;  // their batches are not trained on; 0, 0: none

  bool is_left_out(int64_t step) const { return left_out_first <= step && step <= left_out_last; }
  bool operator==(const NonFiniteSteps&) const = default;
};

/// What happens at a step whose loss or gradient is not finite.
enum class NonFiniteAction {
  kSkip,    // the first one: no update
  kGoBack,  // the second within kNonFiniteSpan steps: continue from the last checkpoint, without the batches from the
            // first to the second
  kStop,    // the third: exit 20
};

/// Non-finite steps that are at most so many steps apart belong together.
inline constexpr int64_t kNonFiniteSpan = 100;

/// Records the step and decides; depends on the recorded steps alone. `updated`: the update made the model non-finite,
/// so that there is no use in a skip, and the first one goes back already.
NonFiniteAction record_non_finite(NonFiniteSteps& history, int64_t step, bool updated = false);

}  // namespace tamis::train
