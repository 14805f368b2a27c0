#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>

#include "tamis/eval/task_eval.h"

namespace tamis::study {

/// Checkpoints of a run by their step, the newest first.
using Checkpoints = std::map<int64_t, std::filesystem::path, std::greater<>>;

/// Throws ExitCode::kInput when the run has none.
Checkpoints checkpoints_of(const std::filesystem::path& run);

/// The step of the checkpoint with the highest score at a length, summed over all depths; among equals the newest.
int64_t best_step(const Checkpoints& checkpoints, int64_t length,
                  const std::function<eval::TaskResult(const std::filesystem::path&)>& evaluate);

}  // namespace tamis::study
