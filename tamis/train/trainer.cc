#include "tamis/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tamis/base/error.h"
#include "tamis/base/random.h"
#include "tamis/nn/trace_scope.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"

namespace tamis::train {
namespace {

int64_t count_targets(const std::vector<data::Example>& examples) {
  int64_t count = 0;
  for (const data::Example& example : examples) {
    count += static_cast<int64_t>(example.targets.size()) -
             std::count(example.targets.begin(), example.targets.end(), data::kIgnore);
  }
  return count;
}

/// Lowers s_r of all heads by `margin`.
void narrow_acceptance(std::span<const models::Parameter> parameters, double margin) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : parameters) {
    if (name.ends_with(".s_r")) at::Tensor(tensor).sub_(margin);
  }
}

[[noreturn]] void fail_diverged(int64_t step, double loss, const std::string& non_finite) {
  fail(ExitCode::kDiverged,
       "step {}: diverged: loss {}, first non-finite tensor: {}; try a smaller train.lr or train.clip", step, loss,
       non_finite.empty() ? "the loss itself" : non_finite);
}

/// The factor that limits the gradient norm to `clip`; 1 when clip is 0. Throws when the norm or the inverse factor,
/// which the optimizer's kernel takes, exceeds the range of float32.
double clip_scale(int64_t step, double norm, double clip) {
  const double scale = clip > 0 && norm > clip ? clip / norm : 1.0;
  constexpr double kMost = std::numeric_limits<float>::max();
  if (norm > kMost || 1.0 / scale > kMost) {
    fail(ExitCode::kDiverged, "step {}: diverged: the gradient norm {} overflows float32{}; try a smaller train.lr",
         step, norm, norm > kMost ? "" : fmt::format(" when clipped to {}", clip));
  }
  return scale;
}

}  // namespace

Trainer::Trainer(const Recipe& recipe, const models::Model& model, const data::Source& source)
    : recipe_(recipe.train), model_(model), source_(source), optimizer_(model_.parameters(), recipe.train) {}

std::optional<int64_t> stochastic_window(const TrainRecipe& recipe, int64_t step) {
  if (recipe.window_short == 0) return std::nullopt;
  const double left = static_cast<double>(recipe.steps - step);
  if (left <= recipe.window_long_last * static_cast<double>(recipe.steps)) return std::nullopt;
  constexpr uint64_t kStream = 0x77696e646f77;  // "window": a stream separate from those of weights and data
  Random random({static_cast<uint64_t>(recipe.seed), kStream, static_cast<uint64_t>(step)});
  return random.uniform() < recipe.window_short_share ? std::optional(recipe.window_short) : std::nullopt;
}

at::Tensor Trainer::loss_sum(const Batch& batch, std::optional<int64_t> window, const models::Observer& observe) const {
  const at::Device device = optimizer_.parameters().front().tensor.device();
  const models::ForwardOptions options{
      .compute_dtype = recipe_.precision == "bfloat16" ? at::kBFloat16 : at::kFloat,
      .recompute = recipe_.recompute,
      .window = window,
      .document_BT = batch.document_BT.defined() ? batch.document_BT.to(device) : batch.document_BT,
      .observe = observe};
  const at::Tensor x_BTD = model_.hidden(batch.tokens_BT.to(device), options).to(options.compute_dtype);
  const at::Tensor head_ND = model_.head_weight().to(options.compute_dtype);
  return ops::linear_cross_entropy(
      x_BTD, head_ND, batch.targets_BT.to(device),
      {.reduction = "sum", .ignore_index = data::kIgnore, .soft_cap = model_.logit_soft_cap()});
}

StepResult Trainer::step(int64_t step) {
  const nn::TraceScope traced(fmt::format("step {}", step + 1));
  try {
    const StepResult result = forward_and_backward(step);
    const nn::TraceScope update("optimizer");
    optimizer_.step(step, result.lr, clip_scale(step + 1, result.gradient_norms.all, recipe_.clip));
    const bool last = step + 1 == recipe_.steps;
    if (last && recipe_.acceptance_margin > 0) narrow_acceptance(optimizer_.parameters(), recipe_.acceptance_margin);
    return result;
  } catch (...) {
    optimizer_.clear_gradients();
    throw;
  }
}

StepResult Trainer::try_step(int64_t step) {
  try {
    const StepResult result = forward_and_backward(step);
    clip_scale(step + 1, result.gradient_norms.all, recipe_.clip);
    optimizer_.clear_gradients();
    return result;
  } catch (...) {
    optimizer_.clear_gradients();
    throw;
  }
}

StepResult Trainer::forward_and_backward(int64_t step) {
  std::vector<data::Example> examples;
  for (int64_t row = 0; row < recipe_.batch_size; ++row) {
    examples.push_back(source_.example(step * recipe_.batch_size + row, recipe_.length));
  }
  // The mean over the whole step does not depend on the number of micro-batches.
  const auto counted = static_cast<double>(std::max<int64_t>(count_targets(examples), 1));
  const int64_t rows = recipe_.batch_size / recipe_.accumulation;
  StepResult result{.lr = learning_rate(recipe_, step),
                    .tokens = recipe_.batch_size * recipe_.length,
                    .window = stochastic_window(recipe_, step)};
  for (auto first = examples.begin(); first != examples.end(); first += rows) {
    const Batch batch = make_batch({first, first + rows});
    const at::Tensor loss = loss_sum(batch, result.window) / counted;
    {
      const nn::TraceScope backward("backward");
      loss.backward();
    }
    result.loss += loss.item<double>();
    if (!std::isfinite(result.loss)) fail_diverged(step + 1, result.loss, first_non_finite_of(batch, result.window));
  }

  result.gradient_norms = gradient_norms(optimizer_.parameters());
  if (!std::isfinite(result.gradient_norms.all)) {
    const std::string parameter = first_non_finite_parameter(optimizer_.parameters());
    fail_diverged(step + 1, result.loss,
                  parameter.empty() ? first_non_finite_gradient(optimizer_.parameters()) : parameter);
  }
  return result;
}

std::string Trainer::first_non_finite_of(const Batch& batch, std::optional<int64_t> window) const {
  std::string non_finite = first_non_finite_parameter(optimizer_.parameters());
  if (!non_finite.empty()) return non_finite;
  const at::NoGradGuard no_grad;
  loss_sum(batch, window, [&non_finite](const std::string& name, const at::Tensor& activation) {
    if (non_finite.empty() && !all_finite(activation)) non_finite = "activation " + name;
  });
  return non_finite;
}

void Trainer::check_parameters(int64_t step) const {
  const std::string non_finite = first_non_finite_parameter(optimizer_.parameters());
  if (!non_finite.empty())
    fail(ExitCode::kDiverged, "step {}: diverged: {} is not finite; try a smaller train.lr", step, non_finite);
}

double Trainer::validation_loss(const ValidationSet& validation) const {
  const at::NoGradGuard no_grad;
  const int64_t rows = recipe_.batch_size / recipe_.accumulation;
  const auto count = static_cast<int64_t>(validation.examples.size());
  double sum = 0.0;
  for (int64_t first = 0; first < count; first += rows) {
    const auto begin = validation.examples.begin() + first;
    sum += loss_sum(make_batch({begin, begin + std::min(rows, count - first)}), std::nullopt).item<double>();
  }
  return sum / static_cast<double>(std::max<int64_t>(count_targets(validation.examples), 1));
}

}  // namespace tamis::train
