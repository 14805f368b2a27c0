#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>

#include "tamis/distributed/process_group.h"
#include "tamis/train/options.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// Starts or resumes the run that a recipe describes and trains it to its last step. Progress is written to `messages`.
/// Returns a summary: {"run", "checkpoint", "steps", "tokens", "seconds", "loss", "validation": {source: loss}, "next":
/// [suggested command lines]}.
///
/// Of several `processes`, which have met, each calls this; only the first writes messages, and the others return null.
///
/// Throws tamis::Error: kUsage (the recipe, or one that does not fit the run), kInput (texts, damaged checkpoints),
/// kDiverged, kLostProcess, kStorage (also when the run's directory is removed during training), and kHangup,
/// kInterrupt or kTerminate after a signal, when all is saved.
nlohmann::json train(const TrainOptions& options, at::Device device, std::FILE* messages,
                     std::unique_ptr<distributed::ProcessGroup> processes = nullptr);

/// The same for a parsed recipe.
nlohmann::json train(const Recipe& recipe, at::Device device, std::FILE* messages);

}  // namespace tamis::train
