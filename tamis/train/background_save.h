#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <future>
#include <string>

#include "tamis/train/run_directory.h"
#include "tamis/train/trainer.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::train {

/// Saves checkpoints of a run while training goes on: the tensors are copied, then a thread of its own writes the copy,
/// hashes it and renames it into place. One save at a time. Memory: the parameters and both moments once more while a
/// save is in progress, or of several processes the part of each.
class BackgroundSave {
 public:
  explicit BackgroundSave(const RunDirectory& directory) : directory_(directory) {}
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Starts to save the checkpoint of state.step; afterwards removes old ones as `recipe` says. First waits for the
  /// previous save. Of several processes this is the first, and waits for the shards of all (BackgroundShard), but not
  /// longer than the processes wait for each other.
  void start(const models::Model& model, const Trainer& trainer, const text::Tokenizer& tokenizer,
             const TrainingState& state, const TrainRecipe& recipe, distributed::ProcessMesh* mesh = nullptr);

  /// Waits until the last save has ended. Throws its error, once: ExitCode::kStorage when it could not be written.
  void wait();
  /// Throws the error of a save that has ended; does not wait.
  void check();

 private:
  const RunDirectory& directory_;
  std::atomic<bool> stopping_ = false;
  std::future<void> running_;
};

/// Writes and hashes what one of several processes has of a checkpoint while training goes on: its shards of the
/// weights (weight_shards.h) and of the optimizer's moments (optimizer_shards.h). They appear next to the checkpoints,
/// and the first process moves all of them into the checkpoint. One save at a time.
class BackgroundShard {
 public:
  ~BackgroundShard();
  /// All processes call it together. `run` is the run directory. Throws the error of the previous save.
  void start(const std::filesystem::path& run, const models::Model& model, Trainer& trainer, int64_t step,
             distributed::ProcessMesh& mesh);
  /// As those of BackgroundSave.
  void wait();
  void check();

 private:
  std::future<void> running_;
};

}  // namespace tamis::train
