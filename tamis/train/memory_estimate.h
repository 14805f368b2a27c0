#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json.hpp>

#include "tamis/train/recipe.h"

namespace tamis::train {

/// An estimate in bytes of what training allocates, from sizes alone: `weights`, `gradients`, `optimizer`,
/// `activations`, `total`; with `precision` and `tokens`, the tokens of a micro-batch.
nlohmann::json estimate_memory(const Recipe& recipe, at::Device device);

}  // namespace tamis::train
