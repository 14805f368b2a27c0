#include "tamis/train/trainer.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tamis/base/error.h"
#include "tamis/base/random.h"
#include "tamis/nn/trace_scope.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "tamis/train/machine.h"

namespace tamis::train {
namespace {

/// Of the tokens [first, first + count) of each example.
int64_t count_targets(const std::vector<data::Example>& examples, int64_t first, int64_t count) {
  int64_t targets = 0;
  for (const data::Example& example : examples) {
    const auto begin = example.targets.begin() + first;
    targets += count - std::count(begin, begin + count, data::kIgnore);
  }
  return targets;
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

void check_processes(const TrainRecipe& recipe, int64_t processes) {
  const int64_t context = recipe.context_parallel;
  if (processes == 1 && context > 1) {
    fail(ExitCode::kUsage,
         "train.context_parallel = {} needs as many processes; start them with torchrun, srun or mpirun", context);
  }
  if (processes % context != 0) {
    fail(ExitCode::kUsage, "train.context_parallel = {} must divide the number of processes, but there are {}", context,
         processes);
  }
  if (recipe.length % context != 0) {
    fail(ExitCode::kUsage, "train.context_parallel = {} must divide train.length, which is {}", context, recipe.length);
  }
  if (context > 1 && recipe.reduction == "ordered") {
    fail(ExitCode::kUsage,
         "train.reduction = \"ordered\" gives the bits of a single process, which is impossible where processes share "
         "sequences; choose \"fast\", or train.context_parallel = 1");
  }
  if (recipe.reduction == "ordered" && recipe.reduction_dtype == "bfloat16") {
    fail(
        ExitCode::kUsage,
        "train.reduction = \"ordered\" gives the bits of a single process, which rounds no gradients; choose \"fast\", "
        "or train.reduction_dtype = \"float32\"");
  }
  micro_batches(recipe, processes / context);  // refuses more processes than sequences
  if (recipe.reduction == "ordered" && recipe.accumulation % processes != 0) {
    fail(
        ExitCode::kUsage,
        "train.reduction = \"ordered\" gives the bits of a single process only if the number of processes, {}, divides "
        "train.accumulation, which is {}",
        processes, recipe.accumulation);
  }
}

namespace {

std::unique_ptr<GradientExchange> make_exchange(distributed::ProcessMesh* mesh,
                                                const std::vector<models::Parameter>& parameters,
                                                const TrainRecipe& recipe) {
  check_processes(recipe, mesh ? mesh->all().size() : 1);
  if (!mesh) return nullptr;
  return std::make_unique<GradientExchange>(
      mesh->all(), parameters,
      Reduction{.ordered = recipe.reduction == "ordered",
                .dtype = recipe.reduction_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat,
                .sharded = recipe.shard == "parameters"});
}

}  // namespace

Trainer::Trainer(const Recipe& recipe, const models::Model& model, const data::Source& source,
                 distributed::ProcessMesh* mesh)
    : recipe_(recipe.train),
      model_(model),
      source_(source),
      mesh_(mesh),
      parameters_(model_.parameters()),
      micro_batches_(micro_batches(recipe_, mesh ? mesh->rows() : 1)),
      exchange_(make_exchange(mesh, parameters_, recipe_)),
      optimizer_(exchange_ ? exchange_->owned_parameters() : parameters_, recipe_) {}

bool Trainer::is_mine(size_t m) const {
  return !mesh_ || static_cast<int64_t>(m) % mesh_->rows() == mesh_->row();
}

int64_t Trainer::own_tokens() const {
  return mesh_ ? recipe_.length / mesh_->context_size() : recipe_.length;
}

int64_t Trainer::first_token() const {
  return mesh_ ? mesh_->context_rank() * own_tokens() : 0;
}

Batch Trainer::own_part(const std::vector<data::Example>& examples) const {
  Batch batch = make_batch(examples);
  if (mesh_ && mesh_->context()) {  // the mixers take their part of the documents
    batch.tokens_BT = batch.tokens_BT.narrow(1, first_token(), own_tokens());
    batch.targets_BT = batch.targets_BT.narrow(1, first_token(), own_tokens());
  }
  return batch;
}

int64_t Trainer::count_own_targets(const std::vector<data::Example>& examples) const {
  return count_targets(examples, first_token(), own_tokens());
}

int64_t Trainer::sum_over_processes(int64_t count) const {
  if (!mesh_) return count;
  const auto mine = static_cast<double>(count);
  double sum = 0;
  for (const double each : mesh_->all().gather(std::span(&mine, 1))) sum += each;
  return static_cast<int64_t>(sum);
}

std::vector<double> Trainer::of_all_processes(const std::vector<double>& mine, size_t micro_batches) const {
  if (!mesh_) return mine;
  const auto rows = static_cast<size_t>(mesh_->rows()), context = static_cast<size_t>(mesh_->context_size());
  const size_t rounds = (micro_batches + rows - 1) / rows;
  std::vector<double> padded = mine;
  padded.resize(rounds);
  const std::vector<double> gathered = mesh_->all().gather(padded);
  std::vector<double> all(micro_batches);
  for (size_t m = 0; m < micro_batches; ++m) {
    for (size_t c = 0; c < context; ++c) all[m] += gathered[(m % rows * context + c) * rounds + m / rows];
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

Trainer::OfStep Trainer::of_step(int64_t step, size_t m) const {
  OfStep result{.window = stochastic_window(recipe_, step), .dropout = {}};
  if (recipe_.dropout > 0) {
    result.dropout = nn::Dropout{.share = recipe_.dropout,
                                 .seed = static_cast<uint64_t>(recipe_.seed),
                                 .step = step,
                                 .first_row = micro_batches_[m].first,
                                 .first_token = first_token()};
  }
  return result;
}

at::Tensor Trainer::loss_sum(const Batch& batch, const OfStep& of_step, const models::Observer& observe) const {
  const at::Device device = parameters_.front().tensor.device();
  const models::ForwardOptions options{
      .compute_dtype = compute_dtype(recipe_.precision),
      .recompute = recipe_.recompute,
      .window = of_step.window,
      .dropout = of_step.dropout,
      .document_BT = batch.document_BT.defined() ? batch.document_BT.to(device) : batch.document_BT,
      .observe = observe,
      .context = mesh_ ? mesh_->context() : nullptr,
      .guard = exchange_ && exchange_->sharded() ? exchange_.get() : nullptr};
  // The gradient of the head is a sum over all tokens, which may be beyond the range of float16 whatever the scale.
  const at::ScalarType dtype = options.compute_dtype == at::kHalf ? at::kFloat : options.compute_dtype;
  const at::Tensor x_BTD = model_.hidden(batch.tokens_BT.to(device), options).to(dtype);
  const at::Tensor head_ND = model_.head_weight().to(dtype);
  return ops::linear_cross_entropy(
      x_BTD, head_ND, batch.targets_BT.to(device),
      {.reduction = "sum", .ignore_index = data::kIgnore, .soft_cap = model_.logit_soft_cap()});
}

StepResult Trainer::step(int64_t step) {
  const nn::TraceScope traced(fmt::format("step {}", step + 1));
  try {
    const StepResult result = forward_and_backward(step);
    const nn::TraceScope update("optimizer");
    if (result.overflowed) {
      clear_gradients();
    } else {
      optimizer_.step(step, result.lr, clip_scale(step + 1, result.gradient_norms.all, recipe_.clip));
      if (exchange_) exchange_->gather_parameters();
    }
    if (recipe_.precision == "float16") loss_scale_.update(result.overflowed);
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
    if (result.overflowed) {
      fail(ExitCode::kDiverged, "step {}: a gradient overflows float16 at the loss scale {}; training skips the step",
           step + 1, scale());
    }
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
  struct MicroBatch {
    std::vector<data::Example> examples;
    OfStep of_step;
  };
  std::vector<MicroBatch> micro_batches;  // of this process
  int64_t targets = 0;
  for (size_t m = 0; m < micro_batches_.size(); ++m) {
    if (!is_mine(m)) continue;
    std::vector<data::Example>& examples = micro_batches.emplace_back(MicroBatch{{}, of_step(step, m)}).examples;
    for (int64_t row = micro_batches_[m].first; row < micro_batches_[m].last; ++row) {
      examples.push_back(source_.example(step * recipe_.batch_size + row, recipe_.length));
    }
    targets += count_own_targets(examples);
  }
  // The mean over the whole step does not depend on the number of micro-batches.
  const auto counted = static_cast<double>(std::max<int64_t>(sum_over_processes(targets), 1));
  StepResult result{.lr = learning_rate(recipe_, step),
                    .tokens = recipe_.batch_size * recipe_.length,
                    .window = stochastic_window(recipe_, step)};
  std::vector<double> losses;
  std::string non_finite;
  for (const MicroBatch& micro_batch : micro_batches) {
    const Batch batch = own_part(micro_batch.examples);
    if (exchange_) exchange_->gather(kOutside);
    const at::Tensor loss = loss_sum(batch, micro_batch.of_step) / counted;
    {
      const nn::TraceScope backward("backward");
      if (exchange_) exchange_->begin(/*last=*/&micro_batch == &micro_batches.back());
      (scale() == 1 ? loss : loss * scale()).backward();
      if (exchange_) exchange_->end();
    }
    if (exchange_) exchange_->release_all();
    losses.push_back(loss.item<double>());
    if (std::isfinite(losses.back()) || !non_finite.empty()) continue;
    non_finite = first_non_finite_of(batch, micro_batch.of_step);
    if (non_finite.empty()) non_finite = "the loss itself";
    if (!mesh_) break;  // other processes wait for the gradients of all micro-batches
  }
  if (exchange_) exchange_->finish(optimizer_.parameters());
  if (scale() != 1) {
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : optimizer_.parameters()) {
      if (tensor.grad().defined()) tensor.mutable_grad().mul_(1 / scale());
    }
  }
  for (const double loss : of_all_processes(losses, micro_batches_.size())) result.loss += loss;

  const std::vector<std::vector<double>> sums =
      exchange_ ? exchange_->block_sums(optimizer_.parameters()) : gradient_block_sums(parameters_);
  result.gradient_norms = gradient_norms(parameters_, sums);
  // All processes have the same loss and norms, and so decide alike.
  const bool overflowed = std::isfinite(result.loss) && !std::isfinite(result.gradient_norms.all);
  result.overflowed = overflowed && recipe_.precision == "float16" && loss_scale_.can_fall();
  if (!result.overflowed) check_finite(step, result, non_finite, sums);
  return result;
}

void Trainer::check_finite(int64_t step, const StepResult& result, const std::string& non_finite,
                           std::span<const std::vector<double>> sums) const {
  if (!std::isfinite(result.loss)) {
    std::string first = non_finite;
    if (mesh_) {
      const std::vector<std::string> texts = mesh_->all().gather(non_finite);
      const auto found = std::ranges::find_if(texts, [](const std::string& text) { return !text.empty(); });
      if (found != texts.end()) first = *found;
    }
    fail_diverged(step + 1, result.loss, first);
  }
  // The mean squares of huge activations overflow, so RMSNorm gives 0: the loss is finite and nothing has a gradient.
  // In float16 the gradients may only be too small.
  if (result.gradient_norms.all == 0 && result.loss > 0 && recipe_.precision != "float16") {
    fail(
        ExitCode::kDiverged,
        "step {}: diverged: every gradient is 0 at a loss of {}, as when weights are too large; try a smaller train.lr",
        step + 1, result.loss);
  }
  if (std::isfinite(result.gradient_norms.all)) return;
  const std::string parameter = first_non_finite_parameter_of_all();
  fail_diverged(step + 1, result.loss, parameter.empty() ? first_non_finite_gradient(parameters_, sums) : parameter);
}

std::string Trainer::first_non_finite_parameter_of_all() const {
  if (!exchange_ || !exchange_->sharded()) return first_non_finite_parameter(parameters_);
  for (const std::string& text : mesh_->all().gather(first_non_finite_parameter(optimizer_.parameters()))) {
    if (!text.empty()) return text.substr(0, text.rfind('['));
  }
  return "";
}

std::string Trainer::first_non_finite_of(const Batch& batch, const OfStep& of_step) const {
  // The other processes may not have noticed, and would not take part in another forward pass.
  if (mesh_ && (mesh_->context() || exchange_->sharded())) return "";
  std::string non_finite = first_non_finite_parameter(parameters_);
  if (!non_finite.empty()) return non_finite;
  const at::NoGradGuard no_grad;
  loss_sum(batch, of_step, [&non_finite](const std::string& name, const at::Tensor& activation) {
    if (non_finite.empty() && !all_finite(activation)) non_finite = "activation " + name;
  });
  return non_finite;
}

void Trainer::check_parameters(int64_t step) const {
  const std::string non_finite = first_non_finite_parameter_of_all();
  if (!non_finite.empty())
    fail(ExitCode::kDiverged, "step {}: diverged: {} is not finite; try a smaller train.lr", step, non_finite);
}

double Trainer::validation_loss(const ValidationSet& validation) const {
  const at::NoGradGuard no_grad;
  // As many sequences at a time as in training. Other sums are formed then, but for "ordered".
  const bool as_alone = !mesh_ || recipe_.reduction == "ordered";
  const auto rows = static_cast<size_t>(as_alone ? recipe_.batch_size / recipe_.accumulation : micro_batches_[0].last);
  const size_t count = validation.examples.size();
  const size_t batches = (count + rows - 1) / rows;
  std::vector<double> sums;
  if (exchange_) exchange_->gather(kOutside);
  for (size_t m = 0; m < batches; ++m) {
    if (!is_mine(m)) continue;
    const auto begin = validation.examples.begin() + static_cast<int64_t>(m * rows);
    const auto end = validation.examples.begin() + static_cast<int64_t>(std::min((m + 1) * rows, count));
    sums.push_back(loss_sum(own_part({begin, end}), {}).item<double>());
  }
  if (exchange_) {
    const auto rounds = (batches + mesh_->rows() - 1) / mesh_->rows();
    if (sums.size() < rounds) exchange_->take_part();
    exchange_->release_all();
  }
  double sum = 0.0;
  for (const double each : of_all_processes(sums, batches)) sum += each;
  const int64_t targets = count_targets(validation.examples, 0, recipe_.length);
  return sum / static_cast<double>(std::max<int64_t>(targets, 1));
}

}  // namespace tamis::train
