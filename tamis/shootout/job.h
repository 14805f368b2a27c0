#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "tamis/shootout/plan.h"

namespace tamis::shootout {

/// Trains, goes on training, or finds that all is done; then measures what the job is for and keeps it as result.json
/// in the run's directory, which is also returned:
///
///   status "done": seconds, tokens, tokens_per_second, loss (validation, the mean over the sources), validation
///   {source: loss}, by_position {source: PositionBins}, curve {tokens, loss}, flops_per_token, state_bytes; final jobs
///   also tasks {task: by_length of eval::to_json} status "diverged": reason
///
/// Throws what train() throws, but for kDiverged.
nlohmann::json run_job(const ShootoutRecipe& recipe, const Job& job, at::Device device, std::FILE* messages);

/// result.json of a job that is done; nothing when it is not. Throws ExitCode::kUsage when it is another recipe's.
std::optional<nlohmann::json> finished(const ShootoutRecipe& recipe, const Job& job);

}  // namespace tamis::shootout
