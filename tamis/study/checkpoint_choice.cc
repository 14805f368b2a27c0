#include "tamis/study/checkpoint_choice.h"

#include "tamis/base/error.h"
#include "tamis/models/checkpoint.h"

namespace tamis::study {

Checkpoints checkpoints_of(const std::filesystem::path& run) {
  Checkpoints checkpoints;
  std::error_code missing;
  for (const auto& entry : std::filesystem::directory_iterator(run / "checkpoints", missing)) {
    if (const auto step = models::step_of(entry.path())) checkpoints[*step] = entry.path();
  }
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
