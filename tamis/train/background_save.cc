#include "tamis/train/background_save.h"

#include <chrono>
#include <exception>
#include <filesystem>
#include <utility>

namespace tamis::train {

BackgroundSave::~BackgroundSave() {
  if (running_.valid()) running_.wait();
}

void BackgroundSave::start(const models::Model& model, const AdamW& optimizer, const text::Tokenizer& tokenizer,
                           const TrainingState& state, const TrainRecipe& recipe) {
  wait();
  running_ = std::async(std::launch::async, [this, copy = copy_for_checkpoint(model, optimizer, tokenizer, state),
                                             keep = recipe.keep, keep_every = recipe.keep_every] {
    const std::filesystem::path checkpoint = directory_.checkpoint(copy.state.step);
    save_training_checkpoint(checkpoint, copy);
    try {
      directory_.check_in_place();
    } catch (...) {  // the directory was replaced while the checkpoint was written, which is now in another one
      if (std::filesystem::exists(checkpoint)) remove_directory(checkpoint);
      throw;
    }
    directory_.remove_old_checkpoints(keep, keep_every);
  });
}

void BackgroundSave::wait() {
  if (running_.valid()) running_.get();
}

void BackgroundSave::check() {
  if (running_.valid() && running_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) running_.get();
}

}  // namespace tamis::train
