#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <functional>
#include <string>

#include "tamis/models/model.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// What steps of a recipe take on this machine.
struct MeasuredSteps {
  double step_seconds = 0.0;                  // of a whole step, with all micro-batches
  double validation_seconds_per_token = 0.0;  // of a forward pass and its loss
  int64_t peak_bytes = 0;                     // peak resident memory of this process, the program included
};

/// Trains `model`, the recipe's, on random tokens with a learning rate of 0: single micro-batches and updates for about
/// `seconds`, at least one micro-batch. `recipe.train.precision` must not be "auto". A step of n micro-batches is
/// counted as n times a micro-batch and one update. Calls `show` with what it does. Changes the model
/// (Model::set_as_trained).
MeasuredSteps measure_steps(const Recipe& recipe, const models::Model& model, double seconds,
                            const std::function<void(const std::string&)>& show);

}  // namespace tamis::train
