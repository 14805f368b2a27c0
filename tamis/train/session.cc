#include "tamis/train/session.h"

#include <fmt/ranges.h>

#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/models/checkpoint.h"
#include "tamis/train/machine.h"

namespace tamis::train {

using nlohmann::json;

Session::Session(Recipe recipe, at::Device device, std::function<void(const std::string&)> say)
    : recipe_(std::move(recipe)), device_(device), say_(std::move(say)) {
  loaded_.tokenizer = open_tokenizer(recipe_.data.tokenizer);
  data_ = open_data(recipe_, *loaded_.tokenizer);
  for (const std::string& note : data_.notes) say_(fmt::format("{}: {}", recipe_.run.dir, note));
  if (recipe_.train.epochs > 0) recipe_.train.steps = steps_of_epochs(data_, recipe_.train);
}

void Session::begin() {
  if (recipe_.train.precision == "auto") recipe_.train.precision = fastest_precision(device_);
  state_ = {};
  make_trainer(new_model());
  if (recipe_.train.start_state == "all" && !recipe_.train.start_from.empty()) {
    continue_from(models::resolve_checkpoint(recipe_.train.start_from));
  }
  complete_state();
}

std::unique_ptr<models::Model> Session::new_model() const {
  const TrainRecipe& train = recipe_.train;
  auto model = models::make_model(
      recipe_.model, models::Start{.seed = train.seed, .device = at::kCPU, .unit_deviation = train.unit_deviation});
  if (recipe_.train.start_from.empty()) return model;
  const std::filesystem::path from = models::resolve_checkpoint(recipe_.train.start_from);
  const std::vector<std::string> kept = models::copy_parameters(*model, from);
  say_(fmt::format("{}: starts from {}{}", recipe_.run.dir, from.string(),
                   kept.empty() ? "" : fmt::format("; new: {}", fmt::join(kept, ", "))));
  return model;
}

/// Takes over the moments and the position in the data from another run's checkpoint.
void Session::continue_from(const std::filesystem::path& checkpoint) {
  const TrainingState other = read_training_state(checkpoint);
  const auto batch_size = other.recipe.value(json::json_pointer("/train/batch_size"), int64_t{0});
  if (batch_size != recipe_.train.batch_size) {
    fail(ExitCode::kUsage,
         "train.start_state = \"all\" continues at the other run's position in the data, so train.batch_size must be "
         "{} as there, but is {}; choose start_state = \"weights\" to start at the beginning of the data",
         batch_size, recipe_.train.batch_size);
  }
  restore_optimizer(checkpoint, *loaded_.model, trainer_->optimizer(), /*all=*/false);
  state_.step = other.step;
  state_.tokens = other.tokens;
}

void Session::resume(const std::filesystem::path& checkpoint) {
  state_ = read_training_state(checkpoint);
  if (recipe_.train.precision == "auto") {
    recipe_.train.precision = state_.recipe.value(json::json_pointer("/train/precision"), std::string("float32"));
  }
  keep_stored_defaults(recipe_, state_.recipe.at("model"));
  const std::string difference = first_difference(state_.recipe, to_json(recipe_));
  if (!difference.empty()) {
    fail(ExitCode::kUsage, "{}: belongs to another recipe: {}; choose another run.dir, or start a new run with --fresh",
         recipe_.run.dir, difference);
  }
  for (const auto& [source, checksum] : data_.checksums) {
    if (state_.checksums[source] == checksum) continue;
    fail(ExitCode::kInput, "{}: the text of data.sources.{} has changed since this run started", recipe_.run.dir,
         source);
  }
  const std::string elsewhere = restore_numerics(state_.numerics);
  if (!elsewhere.empty()) {
    say_(fmt::format("{}: resumes with different arithmetic, so the bits of its results will differ: {}",
                     recipe_.run.dir, elsewhere));
  }
  auto model = models::load_model(checkpoint);
  const std::string mismatch = first_difference({{"model", model->config()}}, {{"model", recipe_.model}});
  if (!mismatch.empty()) {
    fail(ExitCode::kInput, "{}: does not fit the recipe: {}", checkpoint.string(), mismatch);
  }
  make_trainer(std::move(model));
  restore_optimizer(checkpoint, *loaded_.model, trainer_->optimizer());
  complete_state();
}

void Session::make_trainer(std::unique_ptr<models::Model> model) {
  trainer_.reset();  // frees the previous model's memory first
  for (const auto& [name, tensor] : model->parameters()) tensor.set_data(tensor.detach().to(device_));
  loaded_.model = std::move(model);
  trainer_.emplace(recipe_, *loaded_.model, *data_.training);
}

/// What the state records besides the progress.
void Session::complete_state() {
  state_.recipe = to_json(recipe_);
  state_.numerics = describe_numerics();
  state_.checksums = data_.checksums;
}

}  // namespace tamis::train
