#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/distributed/process_group.h"
#include "tamis/eval/options.h"
#include "tamis/eval/position_bins.h"
#include "tamis/eval/progress.h"
#include "tamis/infer/load.h"

namespace tamis::eval {

struct LossResult {
  LossEvalOptions options = {};
  int64_t window_tokens = 0;
  int64_t texts = 0;           // that were read
  int64_t texts_left_out = 0;  // middle: shorter than a window and the token after it
  int64_t tokens = 0;          // that were predicted
  int64_t bytes = 0;           // number of bytes of these tokens
  double nats_per_token = 0;
  double nats_per_byte = 0;
  double perplexity = 0;                      // per token
  std::vector<PositionBin> by_position = {};  // positions 0, 1, 2-3, 4-7, 8-15, ...
  std::vector<PositionBin> points = {};       // those of LossEvalOptions::points, each the middle of first and last
  double seconds = 0;
};

/// Mean loss of texts in windows of W tokens: window k of a text reads its tokens [k W, (k + 1) W) and predicts the
/// token after each, so that every token except a text's first is predicted once. The last window may be shorter. With
/// LossEvalOptions::middle each text of at least W + 1 tokens has one window, in its middle, and others are left out.
/// Logits and sums are float64, and sums have a fixed order. The processes of `group` divide the windows: all return
/// the result that a single one has. Memory: 8 bytes for every token that is read or predicted; with points and a group
/// also 16 W for every pass over about chunk_tokens tokens. Throws ExitCode::kInput when a text has fewer than two
/// tokens, or with middle none is long enough, ExitCode::kUsage for bad options.
LossResult evaluate_loss(const infer::LoadedModel& loaded, std::span<const std::string_view> texts,
                         const LossEvalOptions& options, const Progress& progress = {},
                         distributed::ProcessGroup* group = nullptr);

/// Of one text.
LossResult evaluate_loss(const infer::LoadedModel& loaded, std::string_view text, const LossEvalOptions& options,
                         const Progress& progress = {}, distributed::ProcessGroup* group = nullptr);

/// The fields of LossResult.
nlohmann::json to_json(const LossResult& result);

/// A table for the terminal.
std::string to_table(const LossResult& result);

}  // namespace tamis::eval
