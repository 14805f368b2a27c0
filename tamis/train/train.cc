#include "tamis/train/train.h"

#include <ATen/Parallel.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "tamis/base/cores.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/base/random.h"
#include "tamis/base/terminal.h"
#include "tamis/distributed/process_mesh.h"
#include "tamis/infer/generate.h"
#include "tamis/train/background_save.h"
#include "tamis/train/log.h"
#include "tamis/train/machine.h"
#include "tamis/train/next_commands.h"
#include "tamis/train/recipe.h"
#include "tamis/train/run_directory.h"
#include "tamis/train/session.h"
#include "tamis/train/step_statistics.h"
#include "tamis/train/stop_signals.h"
#include "tamis/train/trace.h"
#include "tamis/train/trainer.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::train {
namespace {

using nlohmann::json;

/// Until a process sees what another one has written to a disk that they share: NFS remembers directories for a minute.
constexpr std::chrono::milliseconds kDiskDelay(70'000);

bool is_due(int64_t step, int64_t every) {
  return every > 0 && step % every == 0;
}

/// The threads of a process that computes.
int64_t default_threads(distributed::ProcessMesh* mesh) {
  return mesh ? std::max<int64_t>(usable_cores() / mesh->sharing_cores(), 1) : usable_cores();
}

/// Trains one run from opening its directory to its last step. Of several processes the first writes the messages and
/// the run's directory, apart from the shards of checkpoints.
class Run {
 public:
  /// `mesh` must outlive the object; null: a single process.
  Run(const Recipe& recipe, bool fresh, at::Device device, std::FILE* messages, distributed::ProcessMesh* mesh)
      : messages_(messages),
        mesh_(mesh),
        progress_(messages),
        session_(
            recipe, device, [this](const std::string& line) { say("{}", line); }, mesh) {
    at::set_num_threads(static_cast<int>(recipe.train.threads > 0 ? recipe.train.threads : default_threads(mesh)));
    if (!first()) return;
    if (fresh) {
      const auto aside = move_run_aside(dir());
      if (!aside.empty()) say("{}: the earlier run is now {}", dir(), aside.string());
    }
    directory_.emplace(dir());
    save_.emplace(*directory_);
  }

  /// Traces some steps (trace.h).
  void trace(const std::filesystem::path& file, int64_t steps) { trace_.emplace(file, steps); }

  json go() {
    if (mesh_) check_directory_is_shared();
    open();
    if (state().step >= settings().steps) {
      say("{}: finished: {} of {} steps are done; raise train.steps to continue, or use --fresh to start a new run",
          dir(), state().step, settings().steps);
      finish_trace();
      return summary();
    }
    try {
      train_to_the_end();
    } catch (...) {
      if (first()) directory_->check_in_place();  // if this fails, it is the cause of the first error
      throw;
    }
    progress_.clear();
    return summary();
  }

  /// Whether this process writes messages and files.
  bool first() const { return !mesh_ || mesh_->all().rank() == 0; }

 private:
  const std::string& dir() const { return session_.recipe().run.dir; }
  const TrainRecipe& settings() const { return session_.recipe().train; }
  TrainingState& state() { return session_.state(); }
  const TrainingState& state() const { return session_.state(); }

  void train_to_the_end() {
    const StopSignals signals;
    start();
    while (state().step < settings().steps) {
      if (!one_step()) continue;
      if (first()) {
        directory_->check_in_place();
        save_->check();
      }
      shard_.check();
      const TrainRecipe& train = settings();
      const int64_t step = state().step;
      const bool last = step == train.steps;
      const int signal = of_any_process(signals.received());
      const bool stopping = signal != 0;
      const bool save_now = last || stopping || is_due(step, train.save_every);
      const bool validate_now = last || is_due(step, train.validate_every);
      const bool sample_now = last || is_due(step, train.sample_every);
      if (save_now || is_due(step, train.log_every)) write_train_records();
      if ((save_now || validate_now || sample_now) && !parameters_are_finite()) continue;
      if (validate_now) keeping_checkpoint([&] { validate(); });
      if (sample_now) keeping_checkpoint([&] { sample(); });
      if (save_now) save();
      if (stopping && !last) stop(signal);
    }
    finish_trace();
    wait_for_save();
  }

  /// A signal that any of the processes has received; 0: none has.
  int of_any_process(int signal) {
    if (!mesh_) return signal;
    const double mine = signal;
    const std::vector<double> all = mesh_->all().gather(std::span(&mine, 1));
    return static_cast<int>(*std::ranges::max_element(all));
  }

  /// Returns on all processes when the checkpoint is in place.
  void wait_for_save() {
    wait_for_shards();
    if (first()) save_->wait();
    if (mesh_) mesh_->all().barrier();
  }

  /// Returns when all processes have written theirs, so that the first one need not wait for one that was lost.
  void wait_for_shards() {
    if (!mesh_) return;
    shard_.wait();
    mesh_->all().barrier();
  }

  std::filesystem::path checkpoint(int64_t step) const { return checkpoint_directory(dir(), step); }

  /// Prints a message of one line.
  template <typename... Args>
  void say(fmt::format_string<Args...> text, Args&&... args) {
    if (!first()) return;
    progress_.clear();
    print_message(messages_, one_line(fmt::format(text, std::forward<Args>(args)...)) + "\n");
  }

  /// Throws ExitCode::kUsage, in all processes, when one of them does not see what the first one writes.
  void check_directory_is_shared() {
    distributed::ProcessGroup& all = mesh_->all();
    // A name of this start: a shared disk may remember for a while that there was no such file.
    const std::filesystem::path marker =
        std::filesystem::path(dir()) / "checkpoints" / fmt::format("{}start-{}", kUnfinishedPrefix, mesh_->token());
    if (first()) write_file(marker, "");
    all.barrier();
    std::error_code ignored;
    const auto deadline = std::chrono::steady_clock::now() + std::min(kDiskDelay, all.timeout() / 2);
    bool seen = std::filesystem::exists(marker, ignored);
    while (!seen && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      seen = std::filesystem::exists(marker, ignored);
    }
    std::error_code unknown;
    const std::filesystem::path place = std::filesystem::absolute(dir(), unknown);
    const std::vector<std::string> missing = all.gather(seen ? "" : unknown ? dir() : place.string());
    if (first()) std::filesystem::remove(marker, ignored);
    for (size_t rank = 1; rank < missing.size(); ++rank) {
      if (missing[rank].empty()) continue;
      fail(ExitCode::kUsage,
           "run.dir: process {} does not see the directory of process 0 at {}; all processes need the same directory, "
           "on a disk that they share",
           rank, one_line(missing[rank]));
    }
  }

  /// Resumes from the newest intact checkpoint, or begins.
  void open() {
    const RunDirectory::Newest newest = newest_intact();
    for (const auto& [step, reason] : newest.damaged) say("{}: damaged: {}", checkpoint(step).string(), reason);
    if (!newest.step && !newest.damaged.empty()) {
      fail(ExitCode::kInput, "{}: none of its {} checkpoints is intact; start a new run with --fresh, which keeps them",
           dir(), newest.damaged.size());
    }
    if (!newest.step) return session_.begin();
    session_.resume(checkpoint(*newest.step));
    if (!first()) return;
    for (const auto& [step, reason] : newest.damaged) {
      say("{}: kept as {}", dir(), directory_->set_aside(step).string());
    }
  }

  /// What the first process finds in the run's directory.
  RunDirectory::Newest newest_intact() {
    RunDirectory::Newest newest;
    if (first()) newest = directory_->newest_intact();
    if (!mesh_) return newest;
    const json mine = {{"step", newest.step ? json(*newest.step) : json()}, {"damaged", newest.damaged.size()}};
    const json found = try_parse_json(mesh_->all().broadcast(json_text(mine)));
    if (first()) return newest;
    if (found["step"].is_number()) newest.step = found["step"];
    newest.damaged.resize(found["damaged"]);
    return newest;
  }

  void start() {
    int64_t parameters = 0;
    for (const auto& [name, tensor] : session_.trainer().parameters()) parameters += tensor.numel();
    const TrainRecipe& train = settings();
    say("{}: {} parameters, {} steps of {} x {} tokens, {}, {}{}{}", dir(),
        format_count(static_cast<double>(parameters)), train.steps, train.batch_size, train.length, train.precision,
        mesh_ ? fmt::format("{} processes with ", mesh_->all().size()) : "", counted(at::get_num_threads(), "thread"),
        state().step > 0 ? fmt::format("; resuming after step {}", state().step) : "");
    if (train.warmup_steps > train.steps) {
      say("{}: warning: the learning rate never reaches train.lr = {}: train.warmup_steps = {} is more than "
          "train.steps = {}",
          dir(), train.lr, train.warmup_steps, train.steps);
    }
    if (first()) {
      matmul_flops_ = directory_->describe(session_.recipe(), session_.device(), state().step, parameters,
                                           mesh_ ? mesh_->all().size() : 1);
      open_log();
    }
    statistics_.emplace(settings(), session_.model(), state(), matmul_flops_);
  }

  /// Removes the records of what the state has still to come to.
  void open_log() {
    log_.reset();  // closes the file first
    log_.emplace(directory_->log(), state().step, state().non_finite);
    if (settings().tensorboard) log_->add_events(directory_->path() / "tensorboard", state().step);
  }

  /// Trains or skips one step; false after a return to a checkpoint.
  bool one_step() {
    if (state().non_finite.is_left_out(state().step + 1)) {
      state().step += 1;
      return true;
    }
    const double before = now_seconds();
    try {
      if (trace_) trace_->begin_step();
      const int64_t sent = mesh_ ? mesh_->bytes_sent() : 0;
      const StepResult result = session_.trainer().step(state().step);
      const double seconds = now_seconds() - before;
      if (trace_ && trace_->end_step()) say_traced();
      state().step += 1;
      state().loss_scale = session_.trainer().loss_scale();
      if (result.overflowed) {
        write({{"type", "overflow"}, {"step", state().step}, {"loss_scale", state().loss_scale.value}});
        return true;
      }
      if (mesh_) sent_bytes_ += mesh_->bytes_sent() - sent;
      state().tokens += result.tokens;
      state().seconds += seconds;
      statistics_->add(result, seconds);
      if (first()) progress_.update(statistics_->progress(state()));
      return true;
    } catch (const Error& error) {
      if (error.code() != ExitCode::kDiverged) throw;
      return recover(error, /*updated=*/false);
    }
  }

  /// False, after a return to a checkpoint, when an update has made a parameter non-finite.
  bool parameters_are_finite() {
    try {
      session_.trainer().check_parameters(state().step);
      return true;
    } catch (const Error& error) {
      return recover(error, /*updated=*/true);
    }
  }

  /// Applies the policy for non-finite steps (non_finite.h); false after a return to a checkpoint. `updated`: the model
  /// itself is not finite.
  bool recover(const Error& error, bool updated) {
    const int64_t step = updated ? state().step : state().step + 1;
    NonFiniteSteps& history = state().non_finite;
    const size_t known = history.steps.size();
    const bool stops = settings().non_finite == "stop";
    switch (stops ? NonFiniteAction::kStop : record_non_finite(history, step, updated)) {
      case NonFiniteAction::kSkip:
        // A step that is met again after a return to a checkpoint is in the log already.
        if (history.steps.size() > known) write_non_finite(step, "skip", error);
        say("{}; the step is skipped", error.what());
        state().step = step;
        return true;
      case NonFiniteAction::kGoBack:
        go_back(step, error.what());
        return false;
      case NonFiniteAction::kStop:
        write_non_finite(step, "stop", error);
        std::string steps = history.steps.size() < 2
                                ? ""
                                : fmt::format("; not finite were the steps {}", fmt::join(history.steps, ", "));
        keeping_checkpoint([&] { throw Error(error.code(), error.what() + steps); });
    }
    return false;
  }

  void write_non_finite(int64_t step, const char* action, const Error& error) {
    write({{"type", "non_finite"}, {"step", step}, {"action", action}, {"error", error.what()}});
  }

  /// Continues from the last checkpoint, or from the beginning if there is none.
  void go_back(int64_t from, const std::string& error) {
    wait_for_save();
    NonFiniteSteps history = state().non_finite;
    const RunDirectory::Newest newest = newest_intact();
    statistics_.reset();  // refers to the model
    if (newest.step) {
      session_.resume(checkpoint(*newest.step));
    } else {
      session_.begin();
    }
    auto& [first_left_out, last_left_out] = history.left_out.back();
    first_left_out = std::max(first_left_out, state().step + 1);  // the checkpoint was trained on the batches before
    state().non_finite = history;
    say("{}; continues after step {} without the batches of steps {} to {}", error, state().step, first_left_out,
        last_left_out);
    if (first()) open_log();
    write({{"type", "rollback"},
           {"step", state().step},
           {"from", from},
           {"left_out", {first_left_out, last_left_out}},
           {"error", error}});
    statistics_.emplace(settings(), session_.model(), state(), matmul_flops_);
  }

  void write(const json& record) {
    if (log_) log_->write(record);
  }

  /// Writes the trace of a run with fewer steps than were to be traced.
  void finish_trace() {
    if (!trace_) return;
    if (trace_->finish()) return say_traced();
    if (trace_->traced() > 0) return;
    say("{}: not written: the first {} steps of a start are not traced, and this one had no more",
        trace_->file().string(), StepTrace::kWarmSteps);
  }

  void say_traced() {
    say("{}: {} traced steps; open it in chrome://tracing or https://ui.perfetto.dev", trace_->file().string(),
        trace_->traced());
  }

  /// Calls `work`; if it throws, adds the last good checkpoint to the error text.
  template <typename Work>
  void keeping_checkpoint(const Work& work) try {
    work();
  } catch (const Error& error) {
    if (!first() || error.code() == ExitCode::kLostProcess) throw;
    save_->wait();
    const std::vector<int64_t> saved = directory_->saved_steps();
    const std::string kept = saved.empty() ? "there is no earlier checkpoint"
                                           : "last good checkpoint: " + checkpoint(saved.front()).string();
    throw Error(error.code(), fmt::format("{}: {}; {}", dir(), error.what(), kept));
  }

  void write_train_records() {
    if (statistics_->empty()) return;  // all steps since the last record were left out
    const int64_t steps = statistics_->steps();
    json record = statistics_->take_record(state());
    if (mesh_) record["sent_bytes"] = take_sent_bytes() / static_cast<double>(steps);
    if (settings().precision == "float16") record["loss_scale"] = state().loss_scale.value;
    write(record);
    if (const json heads = head_record(session_.model(), state().step); !heads.is_null()) write(heads);
  }

  /// Bytes that all processes have sent in steps since the last call.
  double take_sent_bytes() {
    const auto mine = static_cast<double>(std::exchange(sent_bytes_, 0));
    double all = 0;
    for (const double each : mesh_->all().gather(std::span(&mine, 1))) all += each;
    return all;
  }

  void validate() {
    for (const ValidationSet& validation : session_.data().validation) {
      const double loss = session_.trainer().validation_loss(validation);
      if (!std::isfinite(loss)) {
        fail(ExitCode::kDiverged, "step {}: diverged: validation loss {} on {}; try a smaller train.lr", state().step,
             loss, validation.name);
      }
      validation_[validation.name] = loss;
      write({{"type", "validation"}, {"step", state().step}, {"source", validation.name}, {"loss", loss}});
      say("step {}: validation loss {:.4f} on {}", state().step, loss, validation.name);
    }
  }

  void sample() {
    const TrainRecipe& train = settings();
    if (train.sample_prompt.empty()) return;
    infer::GenerateOptions options;
    options.max_new_tokens = train.sample_tokens;
    options.sampling.temperature = train.sample_temperature;
    options.sampling.seed = Random({static_cast<uint64_t>(train.seed), static_cast<uint64_t>(state().step)}).next();
    std::string text;
    session_.trainer().with_whole_model([&] {
      if (first()) text = infer::generate(session_.loaded(), train.sample_prompt, options).text;
    });
    write({{"type", "sample"}, {"step", state().step}, {"prompt", train.sample_prompt}, {"text", text}});
    say("step {}: sample:", state().step);
    if (first()) print_message(messages_, fmt::format("{}{}\n", train.sample_prompt, text));
  }

  void save() {
    wait_for_shards();
    if (first()) {
      log_->sync();
      save_->start(session_.model(), session_.trainer(), session_.tokenizer(), state(), settings(), mesh_);
    }
    if (mesh_) shard_.start(dir(), session_.model(), session_.trainer(), state().step, *mesh_);
  }

  [[noreturn]] void stop(int signal) {
    finish_trace();
    progress_.clear();
    wait_for_save();
    fail(exit_code_of(signal), "{}: stopped by {} and saved after step {} of {}; run the same command to resume", dir(),
         name_of_signal(signal), state().step, settings().steps);
  }

  json summary() const {
    const std::optional<double> loss = statistics_ ? statistics_->loss() : std::nullopt;
    return {{"run", dir()},
            {"checkpoint", checkpoint(state().step).string()},
            {"steps", state().step},
            {"tokens", state().tokens},
            {"seconds", state().seconds},
            {"loss", loss ? json(*loss) : json()},
            {"validation", validation_},
            {"next", next_commands(session_.recipe())}};
  }

  std::FILE* messages_;
  distributed::ProcessMesh* const mesh_;
  ProgressLine progress_;
  Session session_;
  std::optional<RunDirectory> directory_;
  std::optional<BackgroundSave> save_;
  BackgroundShard shard_;
  int64_t sent_bytes_ = 0;  // in steps since the last record
  std::optional<Log> log_;
  std::optional<StepStatistics> statistics_;
  double matmul_flops_ = 0;
  std::optional<StepTrace> trace_;
  json validation_ = json::object();
};

}  // namespace

json train(const TrainOptions& options, at::Device device, std::FILE* messages,
           std::unique_ptr<distributed::ProcessGroup> processes) {
  const Recipe recipe = load_recipe(options.recipe, options.overrides);
  std::optional<distributed::ProcessMesh> mesh;
  if (processes) {
    mesh.emplace(std::move(processes), recipe.train.context_parallel);
  }
  Run run(recipe, options.fresh, device, messages, mesh ? &*mesh : nullptr);
  if (!options.trace.empty() && run.first()) run.trace(options.trace, options.trace_steps);
  const json summary = run.go();
  return run.first() ? summary : json();
}

json train(const Recipe& recipe, at::Device device, std::FILE* messages) {
  Recipe alone = recipe;
  alone.train.context_parallel = 1;
  return Run(alone, /*fresh=*/false, device, messages, /*mesh=*/nullptr).go();
}

}  // namespace tamis::train
