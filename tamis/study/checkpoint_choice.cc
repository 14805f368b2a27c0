#include "tamis/study/checkpoint_choice.h"

#include "tamis/base/error.h"
#include "tamis/train/run_directory.h"

namespace tamis::study {

Checkpoints checkpoints_of(const std::filesystem::path& run) {
  Checkpoints checkpoints;
  for (const int64_t step : train::saved_steps(run)) checkpoints[step] = train::checkpoint_directory(run, step);
  if (checkpoints.empty()) {
    fail(ExitCode::kInput, "{}: holds no checkpoint to choose; expected checkpoints/step-N", run.string());
  }
  return checkpoints;
}

int64_t best_step(const Checkpoints& checkpoints, int64_t length,
                  const std::function<eval::TaskResult(const std::filesystem::path&)>& evaluate) {
  int64_t best = -1;
  double best_score = 0;
  for (const auto& [step, checkpoint] : checkpoints) {
    const double score = evaluate(checkpoint).total(length).score_sum;
    if (best >= 0 && score <= best_score) continue;
    best = step;
    best_score = score;
  }
  return best;
}

}  // namespace tamis::study
