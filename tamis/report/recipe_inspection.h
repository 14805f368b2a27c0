#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json.hpp>

#include "tamis/train/recipe.h"

namespace tamis::report {

/// Describes the model that a recipe trains: inspect_config of its configuration, and `memory`, an estimate in bytes of
/// what training allocates: weights, gradients, optimizer, activations, total; with `precision` and `tokens`, the
/// tokens of a micro-batch.
nlohmann::json inspect_recipe(const train::Recipe& recipe, at::Device device = at::kCPU);

}  // namespace tamis::report
