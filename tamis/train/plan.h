#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/train/communication.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// What a run of a recipe takes on this machine, from the first step to the last:
///
///   model, precision, threads, steps, tokens
///   parameters, parameters_without_embedding
///   flops_per_token      of training: three times the forward pass, with all visible keys
///   measured             whether speed and memory come from steps of this model on random tokens; else from the matmul
///                        peak and from sizes
///   tokens_per_second    of the steps
///   seconds_in_steps     as in log.jsonl
///   seconds              with validation
///   memory_bytes         peak resident memory of the process
///   available_memory_bytes
///   checkpoint_bytes, checkpoints   of one, and how many are kept
///   disk_bytes           kept checkpoints, the log and TensorBoard's events
///   communication        with more than one process in `network`: plan_communication, and "step_seconds", the time of
///                        a step when its computation is divided among processes like this one and then waits for
///                        everything that is sent
///
/// Steps are measured for about 20 seconds if one micro-batch takes less than 30 and the model fits. Neither texts nor
/// tokenizer are opened, except for train.epochs, whose steps depend on them. Sets the number of threads. Shows
/// progress on `messages`.
nlohmann::json plan(Recipe recipe, at::Device device, std::FILE* messages, const Network& network = {});

/// FLOPs of a token's training for a complete configuration, with all visible keys; from a few layers of the model, so
/// that the model need not fit into memory.
double planned_flops_per_token(const nlohmann::json& config, int64_t length);

/// The result of plan() as a table.
std::string plan_text(const nlohmann::json& plan);

}  // namespace tamis::train
