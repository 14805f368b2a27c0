#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/eval/options.h"
#include "tamis/eval/position_bins.h"
#include "tamis/eval/progress.h"
#include "tamis/infer/load.h"

namespace tamis::eval {

struct LossResult {
  int64_t window_tokens = 0;
  int64_t tokens = 0;  // predicted: all but the first
  int64_t bytes = 0;   // of these
  double nats_per_token = 0;
  double nats_per_byte = 0;
  double perplexity = 0;                      // per token
  std::vector<PositionBin> by_position = {};  // positions 0, 1, 2-3, 4-7, 8-15, ...
  double seconds = 0;
};

/// Mean loss of a text that is cut into windows: window k reads tokens [k W, (k + 1) W) and predicts the token after
/// each, so that every token but the first is predicted once. A last, shorter window counts too. Float64 throughout;
/// sums in a fixed order. Throws ExitCode::kInput when the text has fewer than two tokens, ExitCode::kUsage on bad
/// options.
LossResult evaluate_loss(const infer::LoadedModel& loaded, std::string_view text, const LossEvalOptions& options,
                         const Progress& progress = {});

/// The fields above, by their names.
nlohmann::json to_json(const LossResult& result);

/// A few lines for the terminal.
std::string to_table(const LossResult& result);

}  // namespace tamis::eval
