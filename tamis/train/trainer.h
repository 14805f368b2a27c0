#pragma once

#include <cstdint>
#include <optional>

#include "tamis/data/source.h"
#include "tamis/models/model.h"
#include "tamis/train/data_set.h"
#include "tamis/train/optimizer.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// The result of one optimizer step.
struct StepResult {
  double loss = 0.0;             // mean over the step's targets before the update, nats per token
  GradientNorms gradient_norms;  // before clipping
  double lr = 0.0;
  int64_t tokens = 0;
  std::optional<int64_t> window;  // the short sliding window, if stochastic_window drew it
};

/// The window of sliding-window attention in a step; none: the model's own. Depends only on the recipe's seed and the
/// step, so that a resumed run draws the same windows.
std::optional<int64_t> stochastic_window(const TrainRecipe& recipe, int64_t step);

/// A model with its optimizer, trained step by step. Step n uses the examples n batch_size ... (n + 1) batch_size - 1
/// of the source, so that a resumed run needs only n.
class Trainer {
 public:
  /// `model` and `source` must outlive the trainer; the model is trained in place.
  Trainer(const Recipe& recipe, const models::Model& model, const data::Source& source);

  /// Performs step n = 0, 1, ... Throws ExitCode::kDiverged, before the update, when the loss or a gradient is not
  /// finite; the model is unchanged then. The text names the first non-finite tensor: parameters first, then
  /// activations in the order of the forward pass, then gradients in the order of the backward pass.
  StepResult step(int64_t step);
  /// The same without the update.
  StepResult try_step(int64_t step);
  /// Throws ExitCode::kDiverged when a parameter is not finite: such a model must not be saved.
  void check_parameters(int64_t step) const;

  /// Mean loss over all targets, nats per token.
  double validation_loss(const ValidationSet& validation) const;

  AdamW& optimizer() { return optimizer_; }
  const AdamW& optimizer() const { return optimizer_; }

 private:
  /// Loss and gradients of a step; the latter stay in the parameters.
  StepResult forward_and_backward(int64_t step);
  at::Tensor loss_sum(const Batch& batch, std::optional<int64_t> window, const models::Observer& observe = {}) const;
  /// The first non-finite tensor in the computation of a batch's loss: a parameter, else an activation in the order of
  /// the forward pass. Empty when only the loss itself is not finite.
  std::string first_non_finite_of(const Batch& batch, std::optional<int64_t> window) const;

  TrainRecipe recipe_;
  const models::Model& model_;
  const data::Source& source_;
  AdamW optimizer_;
};

}  // namespace tamis::train
