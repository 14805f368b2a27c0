#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tamis/infer/load.h"
#include "tamis/train/data_set.h"
#include "tamis/train/recipe.h"
#include "tamis/train/trainer.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::train {

/// Throws ExitCode::kUsage when the processes do not train the same run. `all`: the "version", the kind of "device",
/// the checksums of the "data" and the "recipe" of each process, by rank. All processes get the same text.
void check_same_run(const std::vector<nlohmann::json>& all);

/// A model in training with its data, its optimizer and its progress, in memory. Files of the run are the caller's.
class Session {
 public:
  /// Opens the tokenizer and the data of the recipe. `say` gets lines for the user. With a `mesh`, which must outlive
  /// the session, all its processes must have the same version of Tamis, recipe, data and kind of device. Throws
  /// ExitCode::kUsage when they have not, as check_processes does, and as open_tokenizer and open_data do.
  Session(Recipe recipe, at::Device device, std::function<void(const std::string&)> say,
          distributed::ProcessMesh* mesh = nullptr);

  /// Goes to the beginning: random weights, or what train.start_from and train.start_state name.
  void begin();
  /// Continues from a checkpoint of this recipe's run. Throws ExitCode::kUsage when it belongs to another recipe,
  /// ExitCode::kInput when it is damaged or the data have changed.
  void resume(const std::filesystem::path& checkpoint);

  const Recipe& recipe() const { return recipe_; }
  const TrainRecipe& train() const { return recipe_.train; }
  at::Device device() const { return device_; }
  const infer::LoadedModel& loaded() const { return loaded_; }
  const models::Model& model() const { return *loaded_.model; }
  const text::Tokenizer& tokenizer() const { return *loaded_.tokenizer; }
  const DataSet& data() const { return data_; }
  Trainer& trainer() { return *trainer_; }
  TrainingState& state() { return state_; }
  const TrainingState& state() const { return state_; }

 private:
  void check_mesh() const;
  void use_arithmetic_of_first_process();
  std::unique_ptr<models::Model> new_model(const std::filesystem::path& from) const;
  void continue_from(const std::filesystem::path& checkpoint);
  void make_trainer(std::unique_ptr<models::Model> model);
  void complete_state();

  Recipe recipe_;
  at::Device device_;
  std::function<void(const std::string&)> say_;
  distributed::ProcessMesh* const mesh_;
  infer::LoadedModel loaded_;
  DataSet data_;
  std::optional<Trainer> trainer_;
  TrainingState state_;
};

}  // namespace tamis::train
