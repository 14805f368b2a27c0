#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tamis/models/model.h"
#include "tamis/train/trainer.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::train {

/// Loss and speed of the steps since the last log record, for the progress line and log.jsonl.
class StepStatistics {
 public:
  /// `state` is the state before the first step, `matmul_flops` the peak in FLOP/s that MFU refers to. Recipe and model
  /// must outlive the object.
  StepStatistics(const TrainRecipe& recipe, const models::Model& model, const TrainingState& state,
                 double matmul_flops);

  void add(const StepResult& result, double seconds);
  /// Steps since the last record.
  int64_t steps() const { return sums_.steps; }
  /// No step since the last record.
  bool empty() const { return sums_.steps == 0; }

  /// The progress line after the last step.
  std::string progress(const TrainingState& state) const;

  /// The "train" record of log.jsonl (docs/training.md) for the steps since the last call, at least one.
  nlohmann::json take_record(const TrainingState& state);

  /// Mean loss of the last record, nats per token.
  std::optional<double> loss() const { return loss_; }

 private:
  /// Sums over the steps since the last record.
  struct Sums {
    double loss = 0.0;
    int64_t steps = 0;
    int64_t tokens = 0;
    double seconds = 0.0;
    int64_t short_windows = 0;  // steps with the short stochastic window
  };

  double tokens_per_second() const;

  const TrainRecipe& recipe_;
  const models::Model& model_;
  const int64_t first_step_;
  const double first_seconds_;
  const double matmul_flops_;
  StepResult last_;
  Sums sums_;
  std::optional<double> loss_;
};

/// The "tiles" record of log.jsonl: windows and acceptance widths as [layer][head], an infinite window as null. Null
/// for models without them.
nlohmann::json head_record(const models::Model& model, int64_t step);

}  // namespace tamis::train
