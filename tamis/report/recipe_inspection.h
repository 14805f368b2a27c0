#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json.hpp>

#include "tamis/train/recipe.h"

namespace tamis::report {

/// What a recipe would train, before it does: inspect_config of its model, and `memory`, an estimate in bytes of what
/// training needs beside the program itself: weights, gradients, optimizer, activations, total; with tokens, those of a
/// micro-batch.
nlohmann::json inspect_recipe(const train::Recipe& recipe, at::Device device = at::kCPU);

}  // namespace tamis::report
