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

/// Where a process leaves its shard for the first process. The next start of the run removes what is left over, and its
/// token differs, so that a process of an earlier start cannot be taken for one of this.
fs::path shard_place(const fs::path& run, int64_t step, const std::string& token, int64_t rank, int64_t size) {
  return run / "checkpoints" /
         fmt::format("{}step-{}-{}.{}", kUnfinishedPrefix, step, token, optimizer_shard_name(rank, size));
}

void rename_shard(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(ExitCode::kStorage, "{}: cannot rename to {}: {}", from.string(), to.string(), error.message());
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
                           const TrainingState& state, const TrainRecipe& recipe, distributed::ProcessMesh* mesh) {
  wait();
  const int64_t processes = mesh ? mesh->all().size() : 0;
  const auto collect_shards = [this, step = state.step, processes, token = mesh ? mesh->token() : "",
                               timeout = mesh ? mesh->all().timeout()
                                              : std::chrono::milliseconds(0)](const fs::path& directory) {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    for (int64_t rank = 0; rank < processes; ++rank) {
      const fs::path shard = shard_place(directory_.path(), step, token, rank, processes);
      while (!fs::exists(shard)) {
        if (stopping_ || std::chrono::steady_clock::now() > deadline) {
          fail(ExitCode::kLostProcess, "{}: process {} did not write it", shard.string(), rank);
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
      }
      rename_shard(shard, directory / optimizer_shard_name(rank, processes));
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

void BackgroundShard::start(const fs::path& run, const AdamW& optimizer, int64_t step, distributed::ProcessMesh& mesh) {
  wait();
  const fs::path place = shard_place(run, step, mesh.token(), mesh.all().rank(), mesh.all().size());
  running_ = std::async(std::launch::async, [place, copy = copy_shard(optimizer)] {
    const fs::path unfinished = place.string() + ".part";
    nn::write_safetensors(unfinished, copy);
    rename_shard(unfinished, place);
  });
}

void BackgroundShard::wait() {
  finish(running_);
}

void BackgroundShard::check() {
  if (has_ended(running_)) finish(running_);
}

}  // namespace tamis::train
