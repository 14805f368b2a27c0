#include "tamis/train/step_statistics.h"

#include <fmt/format.h>

#include <algorithm>

#include "tamis/base/memory.h"
#include "tamis/base/terminal.h"

namespace tamis::train {

using nlohmann::json;

StepStatistics::StepStatistics(const TrainRecipe& recipe, const models::Model& model, const TrainingState& state,
                               double matmul_flops)
    : recipe_(recipe),
      model_(model),
      first_step_(state.step),
      first_seconds_(state.seconds),
      matmul_flops_(matmul_flops) {}

void StepStatistics::add(const StepResult& result, double seconds) {
  last_ = result;
  sums_.loss += result.loss;
  sums_.steps += 1;
  sums_.short_windows += result.window ? 1 : 0;
  sums_.tokens += result.tokens;
  sums_.seconds += seconds;
}

double StepStatistics::tokens_per_second() const {
  return static_cast<double>(sums_.tokens) / std::max(sums_.seconds, 1e-9);
}

std::string StepStatistics::progress(const TrainingState& state) const {
  const double done = static_cast<double>(state.step - first_step_);
  const double seconds = state.seconds - first_seconds_;
  const double left = static_cast<double>(recipe_.steps - state.step);
  return fmt::format("{} {}/{}  loss {:.4f}  lr {:.3g}  {} tok/s  {} left  {}",
                     progress_bar(static_cast<double>(state.step), static_cast<double>(recipe_.steps)), state.step,
                     recipe_.steps, last_.loss, last_.lr, format_count(tokens_per_second()),
                     format_duration(seconds / done * left), format_bytes(static_cast<double>(resident_bytes())));
}

json StepStatistics::take_record(const TrainingState& state) {
  const double speed = tokens_per_second();
  const auto steps = static_cast<double>(sums_.steps);
  // Forward and backward pass together take three times the FLOPs of the forward pass. The accepted share is unknown
  // here; 0 gives a lower bound.
  const double flops = 3.0 * model_.flops_per_token(recipe_.length).executed(/*accepted_share=*/0);
  loss_ = sums_.loss / steps;
  json record = {{"type", "train"},
                 {"step", state.step},
                 {"loss", *loss_},
                 {"lr", last_.lr},
                 {"grad_norm", last_.gradient_norms.all},
                 {"grad_norms", last_.gradient_norms.groups},
                 {"tokens", state.tokens},
                 {"seconds", state.seconds},
                 {"tokens_per_second", speed},
                 {"mfu", speed * flops / matmul_flops_},
                 {"memory_bytes", resident_bytes()}};
  if (recipe_.window_short > 0) record["short_windows"] = static_cast<double>(sums_.short_windows) / steps;
  sums_ = {};
  return record;
}

json head_record(const models::Model& model, int64_t step) {
  json windows = json::array(), accepts = json::array();
  for (const auto& head : model.screening_heads()) {
    windows[head.layer][head.head] = head.window;
    accepts[head.layer][head.head] = head.accept;
  }
  if (windows.empty()) return {};
  return {{"type", "tiles"}, {"step", step}, {"windows", windows}, {"accepts", accepts}};
}

}  // namespace tamis::train
