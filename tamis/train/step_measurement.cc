#include "tamis/train/step_measurement.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tamis/base/memory.h"
#include "tamis/base/terminal.h"
#include "tamis/data/random_tokens.h"
#include "tamis/train/trainer.h"

namespace tamis::train {
namespace {

constexpr int kMostRepetitions = 16;

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// The median of the times of `work` after its first call, which is slower: it allocates all memory. Takes about
/// `budget` seconds, and one call at least.
template <typename Work>
double repeat(double budget, const Work& work) {
  std::vector<double> times;
  const double start = now_seconds();
  double last = 0;
  do {
    const double before = now_seconds();
    work();
    last = now_seconds() - before;
    times.push_back(last);
  } while (times.size() <= kMostRepetitions && now_seconds() - start + last < budget);
  if (times.size() > 1) times.erase(times.begin());
  return median(times);
}

/// The recipe with one micro-batch per step and a learning rate of 0, so that no number of steps can diverge.
Recipe one_micro_batch(Recipe recipe) {
  TrainRecipe& train = recipe.train;
  train.batch_size /= train.accumulation;
  train.batch_tokens = train.batch_size * train.length;
  train.accumulation = 1;
  train.lr = train.min_lr = 0;
  return recipe;
}

/// Gradients of zeros, as an earlier micro-batch would have left some.
void give_gradients(const models::Model& model) {
  for (const auto& [name, tensor] : model.parameters()) tensor.mutable_grad() = at::zeros_like(tensor);
}

double measure_update(const models::Model& model, Trainer& trainer) {
  std::vector<double> times;
  for (int i = 0; i < 3; ++i) {
    give_gradients(model);
    std::vector<at::Tensor> gradients;
    const double before = now_seconds();
    for (const auto& [name, tensor] : model.parameters()) gradients.push_back(tensor.grad());
    const double norm = global_norm(gradients);
    trainer.optimizer().step(i, /*lr=*/0, norm > 0 ? 1 : 0);
    times.push_back(now_seconds() - before);
  }
  return median(times);
}

/// Copies of what a save in the background writes while training goes on.
std::vector<at::Tensor> copies_for_a_save(const models::Model& model, const Trainer& trainer) {
  std::vector<at::Tensor> copies;
  for (const auto& [name, tensor] : model.parameters()) copies.push_back(tensor.detach().clone());
  for (const at::Tensor& moment : trainer.optimizer().first_moments()) copies.push_back(moment.clone());
  for (const at::Tensor& moment : trainer.optimizer().second_moments()) copies.push_back(moment.clone());
  return copies;
}

}  // namespace

MeasuredSteps measure_steps(const Recipe& recipe, const models::Model& model, double seconds,
                            const std::function<void(const std::string&)>& show) {
  const int64_t micro_batches = recipe.train.accumulation;
  const data::RandomTokens source(model.vocab_size());
  model.set_as_trained();
  int64_t step = 0;
  const auto one_step = [&](Trainer& trainer) {
    show(fmt::format("measuring step {} on random tokens", step + 1));
    if (micro_batches > 1) give_gradients(model);
    trainer.set_loss_scale({.value = LossScale::kLeast});  // of float16: no step overflows and leaves its update out
    trainer.step(step++);
  };

  // A stochastic window makes some steps shorter: both kinds are measured.
  Recipe one = one_micro_batch(recipe);
  one.train.window_short = 0;
  double short_share = 0, short_micro_batch = 0;
  if (recipe.train.window_short > 0) {
    short_share = recipe.train.window_short_share * (1 - recipe.train.window_long_last);
    seconds /= 2;
    Recipe narrow = one;
    narrow.train.window_short = recipe.train.window_short;
    narrow.train.window_short_share = 1;
    narrow.train.window_long_last = 0;
    Trainer trainer(narrow, model, source);
    short_micro_batch = repeat(seconds, [&] { one_step(trainer); });
  }
  Trainer trainer(one, model, source);
  double micro_batch = repeat(seconds, [&] { one_step(trainer); });
  micro_batch += short_share * (short_micro_batch - micro_batch);

  MeasuredSteps measured;
  const double update = micro_batches > 1 ? measure_update(model, trainer) : 0;
  measured.step_seconds = static_cast<double>(micro_batches) * (micro_batch - update) + update;
  ValidationSet validation{source.name(), {}};
  for (int64_t row = 0; row < one.train.batch_size; ++row) {
    validation.examples.push_back(source.example(row, one.train.length));
  }
  show("measuring a validation on random tokens");
  measured.validation_seconds_per_token =
      repeat(seconds / 10, [&] { trainer.validation_loss(validation); }) / static_cast<double>(one.train.batch_tokens);
  const std::vector<at::Tensor> saved = copies_for_a_save(model, trainer);
  if (recipe.train.save_every < recipe.train.steps) one_step(trainer);
  measured.peak_bytes = peak_resident_bytes();
  return measured;
}

}  // namespace tamis::train
