#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/models/model.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// Where processes run, for an estimate of the time that they spend on communication.
struct Network {
  int64_t processes = 1;
  double bandwidth = 1.25e9;  // bytes per second of each process in each direction; 10 Gbit/s
  double latency = 5e-5;      // seconds of a message
};

/// What the processes of a run send in a step:
///
///   processes, context_parallel, buckets
///   gradient_bytes, parameter_bytes   by each process
///   context_bytes   by all processes for shared sequences, of each layer; with windows as the model has them
///   sent_bytes      by all processes together, "sent_bytes" of log.jsonl
///   seconds         of the busiest process, if nothing is sent while something is computed
///
/// `model` may be null: then the windows are those at the beginning. Throws ExitCode::kUsage when the recipe cannot be
/// divided among this many processes.
nlohmann::json plan_communication(const Recipe& recipe, const models::Model* model, const Network& network);

}  // namespace tamis::train
