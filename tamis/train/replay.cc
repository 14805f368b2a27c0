#include "tamis/train/replay.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "tamis/base/cores.h"
#include "tamis/base/error.h"
#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/base/terminal.h"
#include "tamis/train/log.h"
#include "tamis/train/run_directory.h"
#include "tamis/train/session.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::train {
namespace {

using nlohmann::json;

/// The newest intact checkpoint from which the run came to the step.
std::optional<int64_t> checkpoint_before(const RunDirectory& directory, int64_t step) {
  for (const int64_t saved : directory.saved_steps()) {
    if (saved >= step || !find_damage(directory.checkpoint(saved)).empty()) continue;
    if (!read_training_state(directory.checkpoint(saved)).non_finite.is_left_out(step)) return saved;
  }
  return std::nullopt;
}

/// The steps that the run had left out when it computed `step`. Later checkpoints than the one before the step record
/// them, and of those since the newest checkpoint the log.
NonFiniteSteps left_out_before(const RunDirectory& directory, int64_t step) {
  NonFiniteSteps result;
  std::vector<NonFiniteSteps::Range>& ranges = result.left_out;
  if (const auto newest = directory.newest_intact().step) {
    ranges = read_training_state(directory.checkpoint(*newest)).non_finite.left_out;
  }
  for (const NonFiniteSteps::Range& range : read_left_out(directory.log())) {
    if (std::ranges::find(ranges, range) == ranges.end()) ranges.push_back(range);
  }
  // A step that is itself left out was computed before the run went back.
  const auto own = std::ranges::find_if(
      ranges, [step](const NonFiniteSteps::Range& range) { return range.first <= step && step <= range.last; });
  ranges.erase(own, ranges.end());
  return result;
}

/// Goes to the first step with what the run itself had there.
void begin_as(Session& session, const Recipe& run) {
  session.begin();
  const std::string difference = first_difference(to_json(run), to_json(session.recipe()));
  if (difference.empty()) return;
  fail(ExitCode::kUsage, "{}: belongs to another recipe: {}; replay a step with the recipe of its run", run.run.dir,
       difference);
}

/// Trains up to and including the steps before `step`.
void go_to(Session& session, int64_t step, ProgressLine& progress) {
  TrainingState& state = session.state();
  const int64_t first = state.step;
  while (state.step < step - 1) {
    try {
      if (!state.non_finite.is_left_out(state.step + 1)) session.trainer().step(state.step);
    } catch (const Error& error) {  // skipped by the run, too
      if (error.code() != ExitCode::kDiverged) throw;
    }
    state.step += 1;
    progress.update(fmt::format(
        "{} replaying step {} of {}",
        progress_bar(static_cast<double>(state.step - first), static_cast<double>(step - first)), state.step, step));
  }
  progress.clear();
}

}  // namespace

json replay(const Recipe& recipe, int64_t step, at::Device device, std::FILE* messages) {
  ProgressLine progress(messages);
  const Recipe run = load_run_recipe(recipe.run.dir);  // throws when there is no run
  Recipe alone = recipe;
  alone.train.context_parallel = 1;
  if (alone.train.precision == "auto") alone.train.precision = run.train.precision;
  keep_stored_defaults(alone, run.model);
  const auto say = [messages](const std::string& line) { print_message(messages, one_line(line) + "\n"); };
  Session session(alone, device, say);
  if (step < 1 || step > session.train().steps) {
    fail(ExitCode::kUsage, "--replay: the recipe has steps 1 to {}, but the step is {}", session.train().steps, step);
  }
  at::set_num_threads(static_cast<int>(recipe.train.threads > 0 ? recipe.train.threads : usable_cores()));
  const RunDirectory directory(recipe.run.dir);
  const std::optional<int64_t> saved = checkpoint_before(directory, step);
  if (saved) {
    session.resume(directory.checkpoint(*saved));
  } else {
    begin_as(session, run);
    if (session.state().step >= step) {
      fail(ExitCode::kUsage, "--replay: the run begins after step {}, but the step is {}", session.state().step, step);
    }
  }
  session.state().non_finite = left_out_before(directory, step);
  go_to(session, step, progress);
  json result = {{"step", step}, {"from", saved.value_or(0)}};
  try {
    const StepResult computed = session.trainer().try_step(step - 1);
    result.update({{"finite", true},
                   {"loss", computed.loss},
                   {"grad_norm", computed.gradient_norms.all},
                   {"grad_norms", computed.gradient_norms.groups}});
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDiverged) throw;
    result.update({{"finite", false}, {"error", error.what()}});
  }
  return result;
}

}  // namespace tamis::train
