#include "tamis/train/replay.h"

#include <ATen/Parallel.h>

#include "tamis/base/cores.h"
#include "tamis/base/error.h"
#include "tamis/base/message.h"
#include "tamis/base/terminal.h"
#include "tamis/train/run_directory.h"
#include "tamis/train/session.h"

namespace tamis::train {
namespace {

using nlohmann::json;

/// The newest intact checkpoint before a step.
std::optional<int64_t> checkpoint_before(const RunDirectory& directory, int64_t step) {
  for (const int64_t saved : directory.saved_steps()) {
    if (saved < step && find_damage(directory.checkpoint(saved)).empty()) return saved;
  }
  return std::nullopt;
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
  Recipe alone = recipe;
  alone.train.context_parallel = 1;
  Session session(alone, device, [messages](const std::string& line) { print_message(messages, line + "\n"); });
  if (step < 1 || step > session.train().steps) {
    fail(ExitCode::kUsage, "--replay: the recipe has steps 1 to {}, but the step is {}", session.train().steps, step);
  }
  at::set_num_threads(static_cast<int>(recipe.train.threads > 0 ? recipe.train.threads : usable_cores()));
  const RunDirectory directory(recipe.run.dir);
  const std::optional<int64_t> saved = checkpoint_before(directory, step);
  if (saved) {
    session.resume(directory.checkpoint(*saved));
  } else {
    session.begin();
  }
  // The run may have left out steps after this checkpoint, which only later ones record.
  if (const auto newest = directory.newest_intact().step) {
    session.state().non_finite = read_training_state(directory.checkpoint(*newest)).non_finite;
  }
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
