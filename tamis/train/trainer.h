#pragma once

#include <cstdint>
#include <optional>

#include "tamis/data/source.h"
#include "tamis/models/model.h"
#include "tamis/train/data_set.h"
#include "tamis/train/optimizer.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// What one optimizer step did.
struct StepResult {
  double loss = 0.0;           // mean over the step's counted targets, before the update; nats
  double gradient_norm = 0.0;  // before clipping
  double lr = 0.0;
  int64_t tokens = 0;
  std::optional<int64_t> window;  // of sliding-window attention, where the recipe draws it
};

/// The window that a step's sliding-window attention sees; unset: the model's own. Depends on the recipe's seed and the
/// step alone, so that a run that goes on draws what it would have drawn.
std::optional<int64_t> stochastic_window(const TrainRecipe& recipe, int64_t step);

/// The model and the optimizer, and what a step is. Step n draws examples n batch_size ... (n + 1) batch_size - 1 of
/// the source: a run that goes on needs to know only n.
class Trainer {
 public:
  /// `model` and `source` must outlive the trainer; the model is trained in place.
  Trainer(const Recipe& recipe, const models::Model& model, const data::Source& source);

  /// Step n = 0, 1, ...; throws ExitCode::kDiverged, before the update, when the loss or a gradient is not finite; the
  /// text names the first tensor that is not: parameters, then activations as the forward pass makes them, then
  /// gradients from the last layer on.
  StepResult step(int64_t step);
  /// Throws ExitCode::kDiverged when a parameter is not finite: such a model must not be saved.
  void check_parameters(int64_t step) const;

  /// Mean loss over all counted targets, nats.
  double validation_loss(const ValidationSet& validation) const;

  AdamW& optimizer() { return optimizer_; }
  const AdamW& optimizer() const { return optimizer_; }

 private:
  at::Tensor loss_sum(const Batch& batch, std::optional<int64_t> window, const models::Observer& observe = {}) const;
  /// The first tensor that is not finite on the way to a batch's loss: a parameter, else an activation in the order of
  /// the forward pass. Empty when only the loss itself is not.
  std::string first_non_finite_of(const Batch& batch, std::optional<int64_t> window) const;

  TrainRecipe recipe_;
  const models::Model& model_;
  const data::Source& source_;
  AdamW optimizer_;
};

}  // namespace tamis::train
