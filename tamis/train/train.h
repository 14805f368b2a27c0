#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tamis/train/options.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// Starts or resumes the run that a recipe describes and trains it to its last step. Progress is written to `messages`.
/// Returns a summary: {"run", "checkpoint", "steps", "tokens", "seconds", "loss", "validation": {source: loss}, "next":
/// [suggested command lines]}.
///
/// Throws tamis::Error: kUsage (bad recipe, or an existing run of another recipe), kInput (texts, damaged checkpoints),
/// kDiverged, kStorage (also when the run directory is removed during training), and kInterrupt or kTerminate after a
/// signal, once a checkpoint is saved.
nlohmann::json train(const TrainOptions& options, at::Device device, std::FILE* messages);

/// The same for a parsed recipe.
nlohmann::json train(const Recipe& recipe, at::Device device, std::FILE* messages);

}  // namespace tamis::train
