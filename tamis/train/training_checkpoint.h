#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/models/model.h"
#include "tamis/text/tokenizer.h"
#include "tamis/train/optimizer.h"

namespace tamis::train {

/// What a run must remember beside its tensors: trainer.json. There is no random state: everything drawn is a function
/// of the seed and the step.
struct TrainingState {
  int64_t step = 0;                                   // optimizer steps done
  int64_t tokens = 0;                                 // tokens trained on
  double seconds = 0.0;                               // time spent in steps
  nlohmann::json recipe = {};                         // to_json of the recipe
  std::map<std::string, std::string> checksums = {};  // DataSet::checksums
  nlohmann::json numerics = {};                       // describe_numerics(); absent in checkpoints of earlier versions
};

/// Writes the directory at once: config.json, model.safetensors, tokenizer.json, generation_config.json,
/// optimizer.safetensors (exp_avg.NAME and exp_avg_sq.NAME for every tensor NAME of the model) and trainer.json with
/// the sizes and checksums of all the others and of itself. Throws ExitCode::kStorage, leaving nothing.
void save_training_checkpoint(const std::filesystem::path& directory, const models::Model& model,
                              const AdamW& optimizer, const text::Tokenizer& tokenizer, const TrainingState& state);

/// Why a checkpoint cannot be trusted ("model.safetensors: checksum differs"); empty when every checksum holds.
std::string find_damage(const std::filesystem::path& directory);

/// trainer.json of an intact checkpoint.
TrainingState read_training_state(const std::filesystem::path& directory);

/// Fills the optimizer's moments. Throws ExitCode::kInput when a tensor is missing or has another shape.
void restore_optimizer(const std::filesystem::path& directory, const models::Model& model, AdamW& optimizer);

}  // namespace tamis::train
