// `tamis bench train`: whole training steps, and the parts of a step outside the model.

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "tamis/bench/bench.h"
#include "tamis/bench/check.h"
#include "tamis/bench/dtypes.h"
#include "tamis/bench/model_inputs.h"
#include "tamis/bench/session.h"
#include "tamis/data/random_tokens.h"
#include "tamis/ops/linear_cross_entropy/linear_cross_entropy.h"
#include "tamis/train/log.h"
#include "tamis/train/trainer.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::bench {
namespace {

using at::Tensor;

/// Loss and gradients of a model on some tokens, by the operators and by their definitions.
class LossCheck {
 public:
  LossCheck(const models::Model& model, int64_t T, double recompute)
      : model_(model),
        tokens_(random_tokens(1, T, model.vocab_size())),
        targets_(random_tokens(1, T, model.vocab_size())),
        recompute_(recompute),
        exact_(with_gradients(
            ops::reference::linear_cross_entropy(exact_hidden(model, tokens_), exact_head(model), targets_, {}))) {}

  double error(at::ScalarType dtype) const {
    const Tensor x = model_.hidden(tokens_, {.compute_dtype = dtype, .recompute = recompute_}).to(dtype);
    const Tensor loss = ops::linear_cross_entropy(x, model_.head_weight().to(dtype), targets_);
    return check("train, " + dtype_name(dtype), with_gradients(loss), exact_, model_tolerance(dtype));
  }

 private:
  std::vector<Named> with_gradients(const Tensor& loss) const {
    std::vector<Tensor> leaves;
    for (const auto& [name, tensor] : model_.parameters()) leaves.push_back(tensor);
    const auto gradients = torch::autograd::grad({loss}, leaves);
    std::vector<Named> result = {{"the loss", loss.detach()}};
    for (size_t i = 0; i < leaves.size(); ++i) {
      result.push_back({"the gradient of " + model_.parameters()[i].name, gradients[i]});
    }
    return result;
  }

  const models::Model& model_;
  Tensor tokens_, targets_;
  double recompute_;
  std::vector<Named> exact_;
};

/// A temporary directory.
class ScratchDirectory {
 public:
  ScratchDirectory() : path_(std::filesystem::temp_directory_path() / fmt::format("tamis-bench-{}", getpid())) {
    std::filesystem::create_directories(path_);
  }
  ~ScratchDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchDirectory(const ScratchDirectory&) = delete;
  ScratchDirectory& operator=(const ScratchDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

/// The seconds that a step takes outside the model; logging and saving are as frequent as by a recipe's defaults.
nlohmann::json outside_the_model(const train::Recipe& recipe, const models::Model& model, const data::Source& source,
                                 const MeasureOptions& options) {
  const train::TrainRecipe& train = recipe.train;
  const auto median = [&](const Work& work) { return measure(work, options).median; };
  const double data = median({.run = [&] {
    std::vector<data::Example> examples;
    for (int64_t row = 0; row < train.batch_size; ++row) examples.push_back(source.example(row, train.length));
    train::make_batch(examples);
  }});

  train::AdamW optimizer(model.parameters(), train);
  std::vector<Tensor> gradients;
  const auto give_gradients = [&] {
    gradients.clear();
    for (const auto& [name, tensor] : model.parameters()) {
      tensor.mutable_grad() = at::full_like(tensor, 1e-3);
      gradients.push_back(tensor.grad());
    }
  };
  int64_t step = 0;
  const double update =
      median({.run = [&] { optimizer.step(step++, train.lr, train::global_norm(gradients) > 0 ? 1 : 0); },
              .prepare = give_gradients});

  const ScratchDirectory scratch;
  train::Log log(scratch.path() / "log.jsonl", 0);
  const double record = median({.run = [&] {
    log.write({{"type", "train"}, {"step", 1}, {"loss", 6.0}, {"tokens", train.length}, {"seconds", 1.0}});
  }});
  const auto tokenizer = text::make_byte_tokenizer();
  const std::filesystem::path checkpoint = scratch.path() / "step-1";
  const double save = median({.run = [&] { save_training_checkpoint(checkpoint, model, optimizer, *tokenizer, {}); },
                              .prepare = [&] { std::filesystem::remove_all(checkpoint); }});
  return {{"data", data},
          {"optimizer", update},
          {"logging", record / static_cast<double>(train.log_every)},
          {"saving", save / static_cast<double>(train.save_every)}};
}

std::string shares_of_step(const Row& row) {
  std::string text = fmt::format("{} {}: of a step", dtype_name(row.dtype), row.tokens);
  double all = 0;
  for (const auto& [name, seconds] : row.details["outside_the_model_seconds"].items()) {
    all += seconds.get<double>() / row.time.median;
    text += fmt::format(" {} {:.2f}%,", name, 100 * seconds.get<double>() / row.time.median);
  }
  return text + fmt::format(" together {:.2f}%", 100 * all);
}

train::Recipe recipe_of(const TrainBench& bench, int64_t length, at::ScalarType dtype) {
  train::Recipe recipe;
  recipe.train.length = length;
  const int64_t tokens = bench.batch_tokens > 0 ? bench.batch_tokens : int64_t{2048};
  recipe.train.batch_size = std::max<int64_t>(1, tokens / length);
  recipe.train.precision = dtype_name(dtype);
  recipe.train.recompute = bench.recompute;
  recipe.train.lr = 1e-6;  // so that the weights hardly change, whatever the number of calls
  return recipe;
}

Row measure_step(const TrainBench& bench, int64_t length, at::ScalarType dtype) {
  const train::Recipe recipe = recipe_of(bench, length, dtype);
  const auto model = make_model(bench.psi, bench.vocab);
  const data::RandomTokens source(bench.vocab);
  const CountedWeights weights = count_weights(*model);
  Row row{.what = "training step", .dtype = dtype, .tokens = length, .batch = recipe.train.batch_size};
  row.tokens_per_call = static_cast<double>(recipe.train.batch_size * length);
  row.flops = 6.0 * (weights.layers + weights.head) * row.tokens_per_call;
  {
    train::Trainer trainer(recipe, *model, source);
    int64_t step = 0;
    row.time = measure({.run = [&] { trainer.step(step++); }}, bench.measure);
  }
  row.details["share_of_flops_in_head"] = weights.head / (weights.layers + weights.head);
  row.details["outside_the_model_seconds"] =
      outside_the_model(recipe, *model, source, {.repeat = bench.measure.repeat, .seconds = 0});
  return row;
}

}  // namespace

Report run(const TrainBench& bench, std::FILE* messages) {
  check_options(bench);
  Session session("train", bench, messages);
  Report& report = session.report();
  report.options = {{"psi", bench.psi}, {"vocab", bench.vocab}, {"recompute", bench.recompute}};
  const auto model = make_model(bench.psi, bench.vocab);
  session.show("the definition in float64");
  const LossCheck check(*model, check_tokens(bench.lengths), bench.recompute);
  session.for_each_thread_count([&](int64_t threads) {
    for (const at::ScalarType dtype : session.dtypes()) {
      const double error = check.error(dtype);
      for (const int64_t length : bench.lengths) {
        session.show(fmt::format("{} tokens, {}, {} threads", length, dtype_name(dtype), threads));
        Row row = measure_step(bench, length, dtype);
        row.threads = threads;
        row.error = error;
        report.notes.push_back(shares_of_step(row));
        report.rows.push_back(std::move(row));
      }
    }
  });
  const CountedWeights weights = count_weights(*model);
  report.notes.push_back(fmt::format(
      "counted: 6 x {:.2f}M (weights of the layers) + 6 x {:.2f}M (vocabulary head) FLOP a token, recomputed or not",
      weights.layers / 1e6, weights.head / 1e6));
  return std::move(report);
}

}  // namespace tamis::bench
