#include "tamis/train/background_save.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/nn/safetensors.h"
#include "tamis/train/optimizer_shards.h"

namespace tamis::train {
namespace {

namespace fs = std::filesystem;

/// Where a process leaves its shard for the first process. The next start of the run removes what is left over.
fs::path shard_place(const fs::path& run, int64_t step, int64_t rank, int64_t size) {
  return run / "checkpoints" / fmt::format("{}step-{}.{}", kUnfinishedPrefix, step, optimizer_shard_name(rank, size));
}

/// Waits and throws the error, if any.
void finish(std::future<void>& running) {
  if (running.valid()) running.get();
}

bool has_ended(const std::future<void>& running) {
  return running.valid() && running.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace

BackgroundSave::~BackgroundSave() {
  stopping_ = true;
  if (running_.valid()) running_.wait();
}

void BackgroundSave::start(const models::Model& model, const Trainer& trainer, const text::Tokenizer& tokenizer,
                           const TrainingState& state, const TrainRecipe& recipe, int64_t processes) {
  wait();
  const auto collect_shards = [this, step = state.step, processes](const fs::path& directory) {
    for (int64_t rank = 0; rank < processes && processes > 1; ++rank) {
      const fs::path shard = shard_place(directory_.path(), step, rank, processes);
      while (!fs::exists(shard)) {
        // The main thread notices when a process is lost, and then ends this one.
        if (stopping_) fail(ExitCode::kLostProcess, "{}: was not written", shard.string());
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      fs::rename(shard, directory / optimizer_shard_name(rank, processes));
    }
  };
  running_ = std::async(
      std::launch::async,
      [this, collect_shards, copy = copy_for_checkpoint(model, trainer.optimizer(), tokenizer, state, trainer.pieces()),
       keep = recipe.keep, keep_every = recipe.keep_every] {
        const fs::path checkpoint = directory_.checkpoint(copy.state.step);
        save_training_checkpoint(checkpoint, copy, collect_shards);
        try {
          directory_.check_in_place();
        } catch (...) {  // the directory was replaced while the checkpoint was written
          if (fs::exists(checkpoint)) remove_directory(checkpoint);
          throw;
        }
        directory_.remove_old_checkpoints(keep, keep_every);
      });
}

void BackgroundSave::wait() {
  finish(running_);
}

void BackgroundSave::check() {
  if (has_ended(running_)) finish(running_);
}

BackgroundShard::~BackgroundShard() {
  if (running_.valid()) running_.wait();
}

void BackgroundShard::start(const fs::path& run, const AdamW& optimizer, int64_t step, int64_t rank, int64_t size) {
  wait();
  running_ = std::async(std::launch::async, [place = shard_place(run, step, rank, size), copy = copy_shard(optimizer)] {
    const fs::path unfinished = place.string() + ".part";
    nn::write_safetensors(unfinished, copy);
    fs::rename(unfinished, place);
  });
}

void BackgroundShard::wait() {
  finish(running_);
}

void BackgroundShard::check() {
  if (has_ended(running_)) finish(running_);
}

}  // namespace tamis::train
