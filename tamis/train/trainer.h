#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tamis/data/source.h"
#include "tamis/distributed/process_mesh.h"
#include "tamis/models/model.h"
#include "tamis/train/data_set.h"
#include "tamis/train/gradient_exchange.h"
#include "tamis/train/loss_scale.h"
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
  bool overflowed = false;        // float16: a gradient was not finite, so there was no update
};

/// The window of sliding-window attention in a step; none: the model's own. Depends only on the recipe's seed and the
/// step, so that a resumed run draws the same windows.
std::optional<int64_t> stochastic_window(const TrainRecipe& recipe, int64_t step);

/// Sequences [first, last) of a step's batch.
struct Rows {
  int64_t first, last;
};

/// The micro-batches of a step. A single process has train.accumulation of them; several have the next multiple of
/// their number, and micro-batch m belongs to process m modulo their number. Processes that share sequences count as
/// one here. Throws ExitCode::kUsage when there are more processes than sequences.
std::vector<Rows> micro_batches(const TrainRecipe& recipe, int64_t processes);

/// Throws ExitCode::kUsage when train.length, the batch or train.context_parallel do not fit this many processes.
void check_processes(const TrainRecipe& recipe, int64_t processes);

/// A model with its optimizer, trained step by step. Step n uses the examples n batch_size ... (n + 1) batch_size - 1
/// of the source, so that a resumed run needs only n.
///
/// With several processes each computes its micro-batches, or its tokens of them, and all have the same parameters and
/// results after every call; all make the same calls in the same order.
class Trainer {
 public:
  /// `model`, `source` and `mesh` must outlive the trainer; the model is trained in place. No mesh: a single process.
  /// Throws ExitCode::kUsage when train.length or the batch cannot be divided among the processes.
  Trainer(const Recipe& recipe, const models::Model& model, const data::Source& source,
          distributed::ProcessMesh* mesh = nullptr);

  /// Performs step n = 0, 1, ... In float16 a step whose loss is finite and whose gradient is not changes no
  /// parameter (but the acceptance margin of the last step) and lowers the loss scale, as long as that is possible.
  /// Otherwise throws ExitCode::kDiverged, before the update, when the loss or a gradient is not finite; the model is
  /// unchanged then. The text names the first non-finite tensor: parameters first, then activations in the order of the
  /// forward pass, then gradients in the order of the backward pass.
  StepResult step(int64_t step);
  /// The same without the update; throws where step() would have returned an overflow.
  StepResult try_step(int64_t step);
  /// Of float16; in other precisions it is not used.
  const LossScale& loss_scale() const { return loss_scale_; }
  void set_loss_scale(const LossScale& scale) { loss_scale_ = scale; }
  /// Throws ExitCode::kDiverged when a parameter is not finite: such a model must not be saved.
  void check_parameters(int64_t step) const;

  /// Calls `work` while the model has all its parameters in memory; all processes call it.
  template <typename Work>
  void with_whole_model(const Work& work) {
    if (exchange_) exchange_->gather_all();
    work();
    if (exchange_) exchange_->release_all();
  }

  /// Mean loss over all targets, nats per token.
  double validation_loss(const ValidationSet& validation) const;

  /// Trained tensors in a fixed order.
  const std::vector<models::Parameter>& parameters() const { return parameters_; }
  /// Of all parameters, or of the pieces that this process owns.
  AdamW& optimizer() { return optimizer_; }
  const AdamW& optimizer() const { return optimizer_; }
  /// Of several processes; null for a single one.
  GradientExchange* exchange() { return exchange_.get(); }
  /// The owned pieces of the parameters; null for a single process.
  const std::vector<Piece>* pieces() const { return exchange_ ? &exchange_->owned() : nullptr; }

 private:
  /// By what the loss is multiplied before the backward pass.
  double scale() const { return recipe_.precision == "float16" ? loss_scale_.value : 1.0; }
  /// Loss and gradients of a step; the latter stay in the parameters.
  StepResult forward_and_backward(int64_t step);
  /// What a step sets for the forward pass of one of its micro-batches; validation has neither.
  struct OfStep {
    std::optional<int64_t> window;
    std::optional<nn::Dropout> dropout;
  };
  /// Of micro-batch m.
  OfStep of_step(int64_t step, size_t m) const;
  at::Tensor loss_sum(const Batch& batch, const OfStep& of_step, const models::Observer& observe = {}) const;
  /// Whether this process computes micro-batch m.
  bool is_mine(size_t m) const;
  /// The tokens of each sequence that this process computes.
  int64_t own_tokens() const;
  int64_t first_token() const;
  Batch own_part(const std::vector<data::Example>& examples) const;
  int64_t count_own_targets(const std::vector<data::Example>& examples) const;
  /// The sum over all processes of a count.
  int64_t sum_over_processes(int64_t count) const;
  /// The values of all micro-batches, from those of this process in order; processes that share one add to its value.
  std::vector<double> of_all_processes(const std::vector<double>& mine, size_t micro_batches) const;
  /// Throws when the loss, on any process, or a gradient is not finite. `non_finite`: the text of this process, if any.
  void check_finite(int64_t step, const StepResult& result, const std::string& non_finite,
                    std::span<const std::vector<double>> sums) const;
  void clear_gradients();
  /// As first_non_finite_parameter, of all processes.
  std::string first_non_finite_parameter_of_all() const;
  /// The first non-finite tensor in the computation of a batch's loss: a parameter, else an activation in the order of
  /// the forward pass. Empty when only the loss itself is not finite.
  std::string first_non_finite_of(const Batch& batch, const OfStep& of_step) const;

  TrainRecipe recipe_;
  const models::Model& model_;
  const data::Source& source_;
  distributed::ProcessMesh* const mesh_;
  std::vector<models::Parameter> parameters_;
  std::vector<Rows> micro_batches_;
  std::unique_ptr<GradientExchange> exchange_;  // of several processes
  AdamW optimizer_;
  LossScale loss_scale_;
};

}  // namespace tamis::train
