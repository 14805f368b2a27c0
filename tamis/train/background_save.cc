#include "tamis/train/background_save.h"

#include <fmt/format.h>

#include <chrono>
#include <exception>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "tamis/base/digest.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/nn/safetensors_set.h"
#include "tamis/train/optimizer_shards.h"
#include "tamis/train/weight_shards.h"

namespace tamis::train {
namespace {

namespace fs = std::filesystem;

/// Where a process leaves its shard for the first process. The next start of the run removes what is left over, and its
/// token differs, so that a process of an earlier start cannot be taken for one of this.
struct ShardPlace {
  fs::path run;
  int64_t step;
  std::string token;

  fs::path of(const std::string& file) const {
    return run / "checkpoints" / fmt::format("{}step-{}-{}.{}", kUnfinishedPrefix, step, token, file);
  }
  /// Next to it, and written before it.
  fs::path digest_of(const std::string& file) const { return of(file + ".sha256"); }
};

void rename_shard(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(ExitCode::kStorage, "{}: cannot rename to {}: {}", from.string(), to.string(), error.message());
}

/// Writes a file and its digest.
void write_shard(const ShardPlace& place, const std::string& file, const std::vector<nn::NamedTensor>& tensors,
                 const std::map<std::string, std::string>& metadata = {}) {
  const fs::path unfinished = place.of(file + ".part");
  nn::write_safetensors(unfinished, tensors, metadata);
  write_file(place.digest_of(file), sha256(MappedFile(unfinished).text()));
  rename_shard(unfinished, place.of(file));
}

/// Waits until process `rank` has written the file, then moves it into `directory`; its digest.
std::string collect_shard(const ShardPlace& place, const std::string& file, int64_t rank, const fs::path& directory,
                          const std::function<bool()>& too_late) {
  while (!fs::exists(place.of(file))) {
    if (too_late()) fail(ExitCode::kLostProcess, "{}: process {} did not write it", place.of(file).string(), rank);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  std::string digest = read_file(place.digest_of(file));
  rename_shard(place.of(file), directory / file);
  fs::remove(place.digest_of(file));
  return digest;
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
  AddFiles collect_shards;
  if (mesh) {
    collect_shards = [this, place = ShardPlace{directory_.path(), state.step, mesh->token()},
                      weights = cut_weights(model, mesh->all().size()), processes = mesh->all().size(),
                      timeout = mesh->all().timeout()](const fs::path& directory) {
      const auto deadline = std::chrono::steady_clock::now() + timeout;
      const auto too_late = [&] { return stopping_ || std::chrono::steady_clock::now() > deadline; };
      std::map<std::string, std::string> digests;
      const auto collect = [&](const std::string& file, int64_t rank) {
        digests[file] = collect_shard(place, file, rank, directory, too_late);
      };
      for (size_t s = 0; s < weights.size(); ++s) {
        collect(nn::tensor_shard_name(s, weights.size()), static_cast<int64_t>(s));
      }
      for (int64_t rank = 0; rank < processes; ++rank) collect(optimizer_shard_name(rank, processes), rank);
      write_weight_index(directory, weights);
      return digests;
    };
  }
  running_ = std::async(
      std::launch::async,
      [this, collect_shards, copy = copy_for_checkpoint(model, trainer.optimizer(), tokenizer, state, mesh != nullptr),
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

void BackgroundShard::start(const fs::path& run, const models::Model& model, Trainer& trainer, int64_t step,
                            distributed::ProcessMesh& mesh) {
  wait();
  const int64_t rank = mesh.all().rank(), size = mesh.all().size();
  WeightShards shards = cut_weights(model, size);
  const size_t count = shards.size();
  shards.resize(size);  // empty for a process that has no part
  running_ = std::async(std::launch::async, [place = ShardPlace{run, step, mesh.token()}, rank, size, count,
                                             weights = copy_weights(model, *trainer.exchange(), shards[rank]),
                                             moments = copy_shard(trainer.optimizer())] {
    if (!weights.empty()) write_shard(place, nn::tensor_shard_name(rank, count), weights, nn::kTensorMetadata);
    write_shard(place, optimizer_shard_name(rank, size), moments);
  });
}

void BackgroundShard::wait() {
  finish(running_);
}

void BackgroundShard::check() {
  if (has_ended(running_)) finish(running_);
}

}  // namespace tamis::train
