#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <optional>

#include "tamis/shootout/plan.h"
#include "tamis/train/stop_signals.h"

namespace tamis::shootout {

/// Trains a job's model, resuming an interrupted run, then measures it and writes the result to the run directory as
/// search.json or, for final jobs, result.json. Returns an existing result if there is one. The result:
///
///   status             "done", or "diverged" with a reason
///   seconds, tokens, tokens_per_second, threads    of the training
///   loss               of the validation, the mean over the sources
///   validation         {source: loss};  by_position  {source: PositionBins}
///   curve              {tokens, loss}: the training loss, thinned
///
/// and for final jobs flops_per_token and state_bytes, by length, and tasks, {task: by_length of eval::to_json}.
///
/// Throws what train() throws, but for kDiverged; kHangup, kInterrupt and kTerminate also when a signal was received
/// while it measured.
nlohmann::json run_job(const ShootoutRecipe& recipe, const Job& job, at::Device device, std::FILE* messages,
                       const train::StopSignals& signals);

/// The stored result of a finished job; none when there is none, or when it was measured with other settings. Throws
/// ExitCode::kUsage when it belongs to another recipe or to other texts.
std::optional<nlohmann::json> finished(const ShootoutRecipe& recipe, const Job& job);

/// Throws kHangup, kInterrupt or kTerminate when one of the signals was received.
void stop_if_asked(const std::string& what, const train::StopSignals& signals);

}  // namespace tamis::shootout
