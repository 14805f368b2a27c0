#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/models/model.h"
#include "tamis/nn/safetensors.h"
#include "tamis/text/tokenizer.h"
#include "tamis/train/gradient_exchange.h"
#include "tamis/train/loss_scale.h"
#include "tamis/train/non_finite.h"
#include "tamis/train/optimizer.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// The state of a run apart from its tensors, stored in trainer.json. It contains no random generator state, because
/// all draws are functions of the seed and the step.
struct TrainingState {
  int64_t step = 0;                                    // optimizer steps done
  int64_t tokens = 0;                                  // tokens trained on
  double seconds = 0.0;                                // time spent in steps
  nlohmann::json recipe = {};                          // to_json of the recipe
  std::map<std::string, std::string> checksums = {};   // DataSet::checksums
  nlohmann::json numerics = nlohmann::json::object();  // describe_numerics(); earlier versions did not record it
  NonFiniteSteps non_finite = {};                      // absent from checkpoints of earlier versions
  LossScale loss_scale = {};                           // of float16; absent before it changes
};

/// All that a training checkpoint holds. Of several processes each writes its own tensors in shards.
struct CheckpointContents {
  nlohmann::json config;                 // of the model
  std::vector<nn::NamedTensor> model;    // as Model::checkpoint_tensors; empty: in shards
  std::vector<nn::NamedTensor> moments;  // exp_avg.NAME, exp_avg_sq.NAME of every tensor NAME of the model; likewise
  std::string tokenizer;                 // tokenizer.json
  int64_t end_of_text;
  TrainingState state;
};

/// Copies of all tensors on the CPU, so that training can go on while they are saved; none of them if they are
/// `in_shards`.
CheckpointContents copy_for_checkpoint(const models::Model& model, const AdamW& optimizer,
                                       const text::Tokenizer& tokenizer, const TrainingState& state,
                                       bool in_shards = false);

/// Puts further files into the directory of a checkpoint. Returns the SHA-256 digests that are known, by file name.
using AddFiles = std::function<std::map<std::string, std::string>(const std::filesystem::path&)>;

/// Writes the directory atomically: config.json, model.safetensors, tokenizer.json, generation_config.json,
/// optimizer.safetensors and trainer.json, which is also the manifest (tamis/models/manifest.h). `add_files` gets the
/// temporary directory. Throws ExitCode::kStorage and then leaves no partial directory.
void save_training_checkpoint(const std::filesystem::path& directory, const CheckpointContents& contents,
                              const AddFiles& add_files = {});
/// The same without a copy of the tensors.
void save_training_checkpoint(const std::filesystem::path& directory, const models::Model& model,
                              const AdamW& optimizer, const text::Tokenizer& tokenizer, const TrainingState& state);

/// Why training cannot resume from a checkpoint, such as "model.safetensors: checksum differs"; empty when it is
/// intact.
std::string find_damage(const std::filesystem::path& directory);

/// Reads trainer.json. Valid checksums do not imply valid content, so every value is checked, and `step` must be the N
/// of a directory named step-N. Throws ExitCode::kInput.
TrainingState read_training_state(const std::filesystem::path& directory);

/// The recipe of a run, from config.toml or, if that is missing, from its newest checkpoint. Throws ExitCode::kInput
/// when there is neither.
Recipe load_run_recipe(const std::filesystem::path& run);

/// Loads the optimizer's moments, which any number of processes may have saved; `pieces` are those of the optimizer, if
/// it has only some of the elements. Throws ExitCode::kInput when a tensor is missing, unless `all` is false, or has
/// another shape.
void restore_optimizer(const std::filesystem::path& directory, const models::Model& model, AdamW& optimizer,
                       bool all = true, const std::vector<Piece>* pieces = nullptr);

}  // namespace tamis::train
