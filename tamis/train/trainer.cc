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
       non_finite);
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

std::vector<Rows> micro_batches(const TrainRecipe& recipe, int64_t processes) {
  if (processes > recipe.batch_size) {
    fail(ExitCode::kUsage,
         "train.batch_size = {}: {} processes need at least one sequence each; start fewer processes, or raise it",
         recipe.batch_size, processes);
  }
  const int64_t wanted = (recipe.accumulation + processes - 1) / processes * processes;
  const int64_t count = std::min(wanted, recipe.batch_size / processes * processes);
  std::vector<Rows> result;
  for (int64_t m = 0; m < count; ++m) {
    result.push_back({m * recipe.batch_size / count, (m + 1) * recipe.batch_size / count});
  }
  return result;
}

namespace {

std::unique_ptr<GradientExchange> make_exchange(distributed::ProcessGroup* group,
                                                const std::vector<models::Parameter>& parameters,
                                                const TrainRecipe& recipe) {
  if (!group) return nullptr;
  return std::make_unique<GradientExchange>(
      *group, parameters,
      Reduction{.ordered = recipe.reduction == "ordered",
                .dtype = recipe.reduction_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat});
}

}  // namespace

Trainer::Trainer(const Recipe& recipe, const models::Model& model, const data::Source& source,
                 distributed::ProcessGroup* group)
    : recipe_(recipe.train),
      model_(model),
      source_(source),
      group_(group),
      parameters_(model_.parameters()),
      micro_batches_(micro_batches(recipe_, group ? group->size() : 1)),
      exchange_(make_exchange(group, parameters_, recipe_)),
      optimizer_(exchange_ ? exchange_->owned_parameters() : parameters_, recipe_) {}

bool Trainer::is_mine(size_t m) const {
  return !group_ || static_cast<int64_t>(m) % group_->size() == group_->rank();
}

int64_t Trainer::sum_over_processes(int64_t count) const {
  if (!group_) return count;
  const auto mine = static_cast<double>(count);
  double sum = 0;
  for (const double each : group_->gather(std::span(&mine, 1))) sum += each;
  return static_cast<int64_t>(sum);
}

std::vector<double> Trainer::of_all_processes(const std::vector<double>& mine, size_t micro_batches) const {
  if (!group_) return mine;
  const size_t rounds = (micro_batches + group_->size() - 1) / group_->size();
  std::vector<double> padded = mine;
  padded.resize(rounds);
  const std::vector<double> gathered = group_->gather(padded);
  std::vector<double> all;
  for (size_t m = 0; m < micro_batches; ++m) {
    all.push_back(gathered[m % group_->size() * rounds + m / group_->size()]);
  }
  return all;
}

std::optional<int64_t> stochastic_window(const TrainRecipe& recipe, int64_t step) {
  if (recipe.window_short == 0) return std::nullopt;
  const double left = static_cast<double>(recipe.steps - step);
  if (left <= recipe.window_long_last * static_cast<double>(recipe.steps)) return std::nullopt;
  constexpr uint64_t kStream = 0x77696e646f77;  // "window": a stream separate from those of weights and data
  Random random({static_cast<uint64_t>(recipe.seed), kStream, static_cast<uint64_t>(step)});
  return random.uniform() < recipe.window_short_share ? std::optional(recipe.window_short) : std::nullopt;
}

at::Tensor Trainer::loss_sum(const Batch& batch, std::optional<int64_t> window, const models::Observer& observe) const {
  const at::Device device = parameters_.front().tensor.device();
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
    if (exchange_) exchange_->gather_parameters();
    const bool last = step + 1 == recipe_.steps;
    if (last && recipe_.acceptance_margin > 0) narrow_acceptance(parameters_, recipe_.acceptance_margin);
    return result;
  } catch (...) {
    clear_gradients();
    throw;
  }
}

StepResult Trainer::try_step(int64_t step) {
  try {
    const StepResult result = forward_and_backward(step);
    clip_scale(step + 1, result.gradient_norms.all, recipe_.clip);
    clear_gradients();
    return result;
  } catch (...) {
    clear_gradients();
    throw;
  }
}

void Trainer::clear_gradients() {
  optimizer_.clear_gradients();
  if (!exchange_) return;
  for (const auto& [name, tensor] : parameters_) tensor.mutable_grad().reset();
  exchange_->clear();
}

StepResult Trainer::forward_and_backward(int64_t step) {
  std::vector<std::vector<data::Example>> micro_batches;  // of this process
  int64_t targets = 0;
  for (size_t m = 0; m < micro_batches_.size(); ++m) {
    if (!is_mine(m)) continue;
    std::vector<data::Example>& examples = micro_batches.emplace_back();
    for (int64_t row = micro_batches_[m].first; row < micro_batches_[m].last; ++row) {
      examples.push_back(source_.example(step * recipe_.batch_size + row, recipe_.length));
    }
    targets += count_targets(examples);
  }
  // The mean over the whole step does not depend on the number of micro-batches.
  const auto counted = static_cast<double>(std::max<int64_t>(sum_over_processes(targets), 1));
  StepResult result{.lr = learning_rate(recipe_, step),
                    .tokens = recipe_.batch_size * recipe_.length,
                    .window = stochastic_window(recipe_, step)};
  std::vector<double> losses;
  std::string non_finite;
  for (const std::vector<data::Example>& examples : micro_batches) {
    const Batch batch = make_batch(examples);
    const at::Tensor loss = loss_sum(batch, result.window) / counted;
    {
      const nn::TraceScope backward("backward");
      if (exchange_) exchange_->begin(/*last=*/&examples == &micro_batches.back());
      loss.backward();
      if (exchange_) exchange_->end();
    }
    losses.push_back(loss.item<double>());
    if (std::isfinite(losses.back()) || !non_finite.empty()) continue;
    non_finite = first_non_finite_of(batch, result.window);
    if (non_finite.empty()) non_finite = "the loss itself";
    if (!group_) break;  // other processes wait for the gradients of all micro-batches
  }
  if (exchange_) exchange_->finish(optimizer_.parameters());
  for (const double loss : of_all_processes(losses, micro_batches_.size())) result.loss += loss;

  std::vector<std::vector<double>> sums;
  if (exchange_) {
    sums = exchange_->block_sums(optimizer_.parameters());
  } else {
    for (const models::Parameter& parameter : parameters_) sums.push_back(block_sums(parameter.tensor.grad()));
  }
  result.gradient_norms = gradient_norms(parameters_, sums);
  check_finite(step, result, non_finite, sums);
  return result;
}

void Trainer::check_finite(int64_t step, const StepResult& result, const std::string& non_finite,
                           std::span<const std::vector<double>> sums) const {
  if (!std::isfinite(result.loss)) {
    std::string first = non_finite;
    if (group_) {
      const std::vector<std::string> texts = group_->gather(non_finite);
      const auto found = std::ranges::find_if(texts, [](const std::string& text) { return !text.empty(); });
      if (found != texts.end()) first = *found;
    }
    fail_diverged(step + 1, result.loss, first);
  }
  if (std::isfinite(result.gradient_norms.all)) return;
  const std::string parameter = first_non_finite_parameter(parameters_);
  fail_diverged(step + 1, result.loss,
                parameter.empty() ? first_non_finite_gradient(parameters_, sums) : parameter);
}

std::string Trainer::first_non_finite_of(const Batch& batch, std::optional<int64_t> window) const {
  std::string non_finite = first_non_finite_parameter(parameters_);
  if (!non_finite.empty()) return non_finite;
  const at::NoGradGuard no_grad;
  loss_sum(batch, window, [&non_finite](const std::string& name, const at::Tensor& activation) {
    if (non_finite.empty() && !all_finite(activation)) non_finite = "activation " + name;
  });
  return non_finite;
}

void Trainer::check_parameters(int64_t step) const {
  const std::string non_finite = first_non_finite_parameter(parameters_);
  if (!non_finite.empty())
    fail(ExitCode::kDiverged, "step {}: diverged: {} is not finite; try a smaller train.lr", step, non_finite);
}

double Trainer::validation_loss(const ValidationSet& validation) const {
  const at::NoGradGuard no_grad;
  const auto rows = static_cast<size_t>(recipe_.batch_size / recipe_.accumulation);
  const size_t count = validation.examples.size();
  const size_t batches = (count + rows - 1) / rows;
  std::vector<double> sums;
  for (size_t m = 0; m < batches; ++m) {
    if (!is_mine(m)) continue;
    const auto begin = validation.examples.begin() + static_cast<int64_t>(m * rows);
    const auto end = validation.examples.begin() + static_cast<int64_t>(std::min((m + 1) * rows, count));
    sums.push_back(loss_sum(make_batch({begin, end}), std::nullopt).item<double>());
  }
  double sum = 0.0;
  for (const double each : of_all_processes(sums, batches)) sum += each;
  return sum / static_cast<double>(std::max<int64_t>(count_targets(validation.examples), 1));
}

}  // namespace tamis::train
