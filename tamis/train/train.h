#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tamis::train {

struct TrainOptions {
  std::filesystem::path recipe;        // a TOML file
  std::vector<std::string> overrides;  // `train.lr=0.0625`
  bool fresh = false;                  // begin anew; an existing run is kept under another name
  at::Device device = at::kCPU;        // where to compute
};

/// Begins, or goes on with, the run that a recipe describes, until its last step; progress goes to `messages`. Returns
/// a summary: {"run", "checkpoint", "steps", "tokens", "seconds", "loss", "validation": {source: loss}}.
///
/// Throws tamis::Error: kUsage (the recipe, or one that does not fit the run), kInput (texts, damaged checkpoints),
/// kDiverged, kStorage, and kInterrupt or kTerminate after a signal, when all is saved.
nlohmann::json train(const TrainOptions& options, std::FILE* messages);

}  // namespace tamis::train
