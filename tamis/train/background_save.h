#pragma once

#include <cstdint>
#include <future>

#include "tamis/train/run_directory.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::train {

/// Saves checkpoints of a run while training goes on: the tensors are copied, then a thread of its own writes the copy,
/// hashes it and renames it into place. One save at a time. Memory: the parameters and both moments once more while a
/// save is in progress.
class BackgroundSave {
 public:
  explicit BackgroundSave(const RunDirectory& directory) : directory_(directory) {}
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  /// Starts to save the checkpoint of state.step; afterwards removes old ones as `recipe` says. First waits for the
  /// previous save.
  void start(const models::Model& model, const AdamW& optimizer, const text::Tokenizer& tokenizer,
             const TrainingState& state, const TrainRecipe& recipe);

  /// Waits until the last save has ended. Throws its error, once: ExitCode::kStorage when it could not be written.
  void wait();
  /// Throws the error of a save that has ended; does not wait.
  void check();

 private:
  const RunDirectory& directory_;
  std::future<void> running_;
};

}  // namespace tamis::train
