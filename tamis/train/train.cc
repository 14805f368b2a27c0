#include "tamis/train/train.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "tamis/base/cores.h"
#include "tamis/base/error.h"
#include "tamis/base/message.h"
#include "tamis/base/random.h"
#include "tamis/base/terminal.h"
#include "tamis/infer/generate.h"
#include "tamis/models/checkpoint.h"
#include "tamis/train/log.h"
#include "tamis/train/machine.h"
#include "tamis/train/next_commands.h"
#include "tamis/train/recipe.h"
#include "tamis/train/run_directory.h"
#include "tamis/train/step_statistics.h"
#include "tamis/train/stop_signals.h"
#include "tamis/train/trace.h"
#include "tamis/train/trainer.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::train {
namespace {

using nlohmann::json;

bool is_due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

/// Trains one run from opening its directory to its last step.
class Run {
 public:
  Run(Recipe recipe, bool fresh, at::Device device, std::FILE* messages)
      : device_(device), recipe_(std::move(recipe)), messages_(messages), progress_(messages) {
    at::set_num_threads(static_cast<int>(recipe_.train.threads > 0 ? recipe_.train.threads : usable_cores()));
    loaded_.tokenizer = open_tokenizer(recipe_.data.tokenizer);
    data_ = open_data(recipe_, *loaded_.tokenizer);
    if (fresh) {
      const auto aside = move_run_aside(recipe_.run.dir);
      if (!aside.empty()) say("{}: the earlier run is now {}", recipe_.run.dir, aside.string());
    }
    directory_.emplace(recipe_.run.dir);
  }

  /// Traces some steps (trace.h).
  void trace(const std::filesystem::path& file, int64_t steps) { trace_.emplace(file, steps); }

  json go() {
    open();
    if (state_.step >= recipe_.train.steps) {
      say("{}: finished: {} of {} steps are done; raise train.steps to continue, or use --fresh to start a new run",
          recipe_.run.dir, state_.step, recipe_.train.steps);
      return summary();
    }
    try {
      train_to_the_end();
    } catch (...) {
      directory_->check_in_place();  // if this fails, it is the cause of the first error
      throw;
    }
    progress_.clear();
    return summary();
  }

 private:
  void train_to_the_end() {
    const StopSignals signals;
    start();
    while (state_.step < recipe_.train.steps) {
      keeping_checkpoint([&] { one_step(); });
      directory_->check_in_place();
      const TrainRecipe& train = recipe_.train;
      const bool last = state_.step == train.steps;
      const bool stopping = signals.received() != 0;
      const bool save_now = last || stopping || is_due(state_.step, train.save_every);
      const bool validate_now = last || is_due(state_.step, train.validate_every);
      const bool sample_now = last || is_due(state_.step, train.sample_every);
      if (save_now || is_due(state_.step, train.log_every)) write_train_records();
      if (save_now || validate_now || sample_now) keeping_checkpoint([&] { trainer_->check_parameters(state_.step); });
      if (validate_now) keeping_checkpoint([&] { validate(); });
      if (sample_now) keeping_checkpoint([&] { sample(); });
      if (save_now) save();
      if (stopping && !last) stop(signals.received());
    }
    if (trace_ && trace_->finish()) say_traced();
  }

  template <typename... Args>
  void say(fmt::format_string<Args...> text, Args&&... args) {
    progress_.clear();
    print_message(messages_, fmt::format(text, std::forward<Args>(args)...) + "\n");
  }

  /// Finds the newest intact checkpoint, checks that it belongs to this recipe, and makes the trainer.
  void open() {
    const RunDirectory::Newest newest = directory_->newest_intact();
    for (const auto& [step, reason] : newest.damaged)
      say("{}: damaged: {}", directory_->checkpoint(step).string(), reason);
    if (!newest.step && !newest.damaged.empty()) {
      fail(ExitCode::kInput, "{}: none of its {} checkpoints is intact; start a new run with --fresh, which keeps them",
           recipe_.run.dir, newest.damaged.size());
    }
    if (newest.step) {
      resume(directory_->checkpoint(*newest.step));
      for (const auto& [step, reason] : newest.damaged) {
        say("{}: kept as {}", recipe_.run.dir, directory_->set_aside(step).string());
      }
    } else {
      if (recipe_.train.precision == "auto") recipe_.train.precision = fastest_precision(device_);
      make_trainer(new_model());
    }
    state_.recipe = to_json(recipe_);
    state_.numerics = describe_numerics();
    state_.checksums = data_.checksums;
  }

  /// A model with random weights, or with those of train.start_from.
  std::unique_ptr<models::Model> new_model() {
    auto model = models::make_model(recipe_.model, recipe_.train.seed);
    if (recipe_.train.start_from.empty()) return model;
    const std::filesystem::path from = models::resolve_checkpoint(recipe_.train.start_from);
    const std::vector<std::string> kept = models::copy_parameters(*model, from);
    say("{}: starts from {}{}", recipe_.run.dir, from.string(),
        kept.empty() ? "" : fmt::format("; new: {}", fmt::join(kept, ", ")));
    return model;
  }

  void resume(const std::filesystem::path& checkpoint) {
    state_ = read_training_state(checkpoint);
    if (recipe_.train.precision == "auto") {
      recipe_.train.precision = state_.recipe.value(json::json_pointer("/train/precision"), std::string("float32"));
    }
    keep_stored_defaults(recipe_, state_.recipe.at("model"));
    const std::string difference = first_difference(state_.recipe, to_json(recipe_));
    if (!difference.empty()) {
      fail(ExitCode::kUsage,
           "{}: belongs to another recipe: {}; choose another run.dir, or start a new run with --fresh",
           recipe_.run.dir, difference);
    }
    for (const auto& [source, checksum] : data_.checksums) {
      if (state_.checksums[source] == checksum) continue;
      fail(ExitCode::kInput, "{}: the text of data.sources.{} has changed since this run started", recipe_.run.dir,
           source);
    }
    const std::string elsewhere = restore_numerics(state_.numerics);
    if (!elsewhere.empty()) {
      say("{}: resumes with different arithmetic, so the bits of its results will differ: {}", recipe_.run.dir,
          elsewhere);
    }
    auto model = models::load_model(checkpoint);
    const std::string mismatch = first_difference({{"model", model->config()}}, {{"model", recipe_.model}});
    if (!mismatch.empty()) {
      fail(ExitCode::kInput, "{}: does not fit the recipe: {}", checkpoint.string(), mismatch);
    }
    make_trainer(std::move(model));
    restore_optimizer(checkpoint, *loaded_.model, trainer_->optimizer());
  }

  void make_trainer(std::unique_ptr<models::Model> model) {
    for (const auto& [name, tensor] : model->parameters()) tensor.set_data(tensor.detach().to(device_));
    loaded_.model = std::move(model);
    trainer_.emplace(recipe_, *loaded_.model, *data_.training);
  }

  void start() {
    int64_t parameters = 0;
    for (const auto& [name, tensor] : trainer_->optimizer().parameters()) parameters += tensor.numel();
    const TrainRecipe& train = recipe_.train;
    say("{}: {} parameters, {} steps of {} x {} tokens, {}, {} threads{}", recipe_.run.dir,
        format_count(static_cast<double>(parameters)), train.steps, train.batch_size, train.length, train.precision,
        at::get_num_threads(), state_.step > 0 ? fmt::format("; resuming after step {}", state_.step) : "");
    if (train.warmup_steps > train.steps) {
      say("{}: warning: the learning rate never reaches train.lr = {}: train.warmup_steps = {} is more than "
          "train.steps = {}",
          recipe_.run.dir, train.lr, train.warmup_steps, train.steps);
    }
    const double matmul_flops = directory_->describe(recipe_, device_, state_.step, parameters);
    log_.emplace(directory_->log(), state_.step);
    if (train.tensorboard) log_->add_events(directory_->path() / "tensorboard", state_.step);
    statistics_.emplace(recipe_.train, *loaded_.model, state_, matmul_flops);
  }

  void one_step() {
    if (trace_) trace_->begin_step();
    const double before = now_seconds();
    const StepResult result = trainer_->step(state_.step);
    const double seconds = now_seconds() - before;
    if (trace_ && trace_->end_step()) say_traced();
    state_.step += 1;
    state_.tokens += result.tokens;
    state_.seconds += seconds;
    statistics_->add(result, seconds);
    progress_.update(statistics_->progress(state_));
  }

  void say_traced() {
    say("{}: {} traced steps; open it in chrome://tracing or https://ui.perfetto.dev", trace_->file().string(),
        trace_->traced());
  }

  /// Calls `work`; if it throws, adds the last good checkpoint to the error text.
  template <typename Work>
  void keeping_checkpoint(const Work& work) const try {
    work();
  } catch (const Error& error) {
    const std::vector<int64_t> saved = directory_->saved_steps();
    const std::string kept = saved.empty() ? "there is no earlier checkpoint"
                                           : "last good checkpoint: " + directory_->checkpoint(saved.front()).string();
    throw Error(error.code(), fmt::format("{}: {}; {}", recipe_.run.dir, error.what(), kept));
  }

  void write_train_records() {
    log_->write(statistics_->take_record(state_));
    if (const json tiles = tile_record(*loaded_.model, state_.step); !tiles.is_null()) log_->write(tiles);
  }

  void validate() {
    for (const ValidationSet& validation : data_.validation) {
      const double loss = trainer_->validation_loss(validation);
      if (!std::isfinite(loss)) {
        fail(ExitCode::kDiverged, "step {}: diverged: validation loss {} on {}; try a smaller train.lr", state_.step,
             loss, validation.name);
      }
      validation_[validation.name] = loss;
      log_->write({{"type", "validation"}, {"step", state_.step}, {"source", validation.name}, {"loss", loss}});
      say("step {}: validation loss {:.4f} on {}", state_.step, loss, validation.name);
    }
  }

  void sample() {
    const TrainRecipe& train = recipe_.train;
    if (train.sample_prompt.empty()) return;
    infer::GenerateOptions options;
    options.max_new_tokens = train.sample_tokens;
    options.sampling.temperature = train.sample_temperature;
    options.sampling.seed = Random({static_cast<uint64_t>(train.seed), static_cast<uint64_t>(state_.step)}).next();
    const std::string text = infer::generate(loaded_, train.sample_prompt, options).text;
    log_->write({{"type", "sample"}, {"step", state_.step}, {"prompt", train.sample_prompt}, {"text", text}});
    say("step {}: sample:\n{}{}", state_.step, train.sample_prompt, text);
  }

  void save() {
    log_->sync();
    save_training_checkpoint(directory_->checkpoint(state_.step), *loaded_.model, trainer_->optimizer(),
                             *loaded_.tokenizer, state_);
    directory_->remove_old_checkpoints(recipe_.train.keep);
  }

  [[noreturn]] void stop(int signal) {
    if (trace_ && trace_->finish()) say_traced();
    progress_.clear();
    fail(exit_code_of(signal), "{}: stopped by {} and saved after step {} of {}; run the same command to resume",
         recipe_.run.dir, name_of_signal(signal), state_.step, recipe_.train.steps);
  }

  json summary() const {
    const std::optional<double> loss = statistics_ ? statistics_->loss() : std::nullopt;
    return {{"run", recipe_.run.dir},    {"checkpoint", directory_->checkpoint(state_.step).string()},
            {"steps", state_.step},      {"tokens", state_.tokens},
            {"seconds", state_.seconds}, {"loss", loss ? json(*loss) : json()},
            {"validation", validation_}, {"next", next_commands(recipe_)}};
  }

  at::Device device_;
  Recipe recipe_;
  std::FILE* messages_;
  ProgressLine progress_;
  infer::LoadedModel loaded_;
  DataSet data_;
  std::optional<RunDirectory> directory_;
  std::optional<Trainer> trainer_;
  std::optional<StepTrace> trace_;
  std::optional<Log> log_;
  TrainingState state_;
  std::optional<StepStatistics> statistics_;
  json validation_ = json::object();
};

}  // namespace

json train(const TrainOptions& options, at::Device device, std::FILE* messages) {
  Run run(load_recipe(options.recipe, options.overrides), options.fresh, device, messages);
  if (!options.trace.empty()) run.trace(options.trace, options.trace_steps);
  return run.go();
}

json train(const Recipe& recipe, at::Device device, std::FILE* messages) {
  return Run(recipe, /*fresh=*/false, device, messages).go();
}

}  // namespace tamis::train
