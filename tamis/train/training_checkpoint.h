#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/models/model.h"
#include "tamis/text/tokenizer.h"
#include "tamis/train/optimizer.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// What a run must remember beside its tensors: trainer.json. There is no random state: everything drawn is a function
/// of the seed and the step.
struct TrainingState {
  int64_t step = 0;                                    // optimizer steps done
  int64_t tokens = 0;                                  // tokens trained on
  double seconds = 0.0;                                // time spent in steps
  nlohmann::json recipe = {};                          // to_json of the recipe
  std::map<std::string, std::string> checksums = {};   // DataSet::checksums
  nlohmann::json numerics = nlohmann::json::object();  // describe_numerics(); earlier versions did not record it
};

/// Writes the directory at once: config.json, model.safetensors, tokenizer.json, generation_config.json,
/// optimizer.safetensors (exp_avg.NAME and exp_avg_sq.NAME for every tensor NAME of the model) and trainer.json, the
/// manifest of all of them (models/manifest.h). Throws ExitCode::kStorage, leaving nothing.
void save_training_checkpoint(const std::filesystem::path& directory, const models::Model& model,
                              const AdamW& optimizer, const text::Tokenizer& tokenizer, const TrainingState& state);

/// Why training cannot go on from a checkpoint ("model.safetensors: checksum differs"); empty when every checksum
/// holds.
std::string find_damage(const std::filesystem::path& directory);

/// What trainer.json says. Whoever forges it can make its checksums hold: every value is checked, and that `step` is
/// the N of a directory called step-N. Throws ExitCode::kInput.
TrainingState read_training_state(const std::filesystem::path& directory);

/// The recipe of a run: its config.toml, or where that is missing what its newest checkpoint holds of it. Throws
/// ExitCode::kInput when there is neither.
Recipe load_run_recipe(const std::filesystem::path& run);

/// Fills the optimizer's moments. Throws ExitCode::kInput when a tensor is missing or has another shape.
void restore_optimizer(const std::filesystem::path& directory, const models::Model& model, AdamW& optimizer);

}  // namespace tamis::train
