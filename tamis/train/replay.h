#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "tamis/train/recipe.h"

namespace tamis::train {

/// Computes step `step` = 1, 2, ... of a run once more, from its newest checkpoint before that step, with the same
/// bits, and reports its loss and gradient norms, or the first tensor that is not finite. Changes nothing in the run.
/// Costs the steps from the checkpoint, or from the beginning if there is none.
///
/// Returns {"step", "from", "finite", "loss", "grad_norm", "grad_norms"}, or "error" instead of the last three.
/// Throws ExitCode::kInput when there is no run, ExitCode::kUsage when the step is not one of the recipe's or the
/// recipe is another than the run's, and as training does.
nlohmann::json replay(const Recipe& recipe, int64_t step, at::Device device, std::FILE* messages);

}  // namespace tamis::train
