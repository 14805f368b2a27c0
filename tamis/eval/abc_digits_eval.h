#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/eval/options.h"
#include "tamis/eval/progress.h"
#include "tamis/infer/load.h"

namespace tamis::eval {

struct AbcDigitsCell {
  int64_t length = 0;
  double depth = 0;
  int64_t prompt_tokens = 0;
  int64_t correct = 0;
  int64_t instances = 0;
};

struct AbcDigitsResult {
  AbcDigitsEvalOptions options;
  std::vector<AbcDigitsCell> cells = {};  // by length, then depth
  double seconds = 0;

  /// All depths of one length together; its depth is 0.
  AbcDigitsCell total(int64_t length) const;
};

/// Retrieval accuracy on ABCDigits in the paper's form (data/abc_digits.h): the prompt, then six greedy steps; an
/// instance counts when all six digits are right. Sequences of equal length are read together, in chunks, as many as
/// `state_bytes` allows: the first sequence of a length tells how much one needs. Throws ExitCode::kUsage on options
/// out of range.
AbcDigitsResult evaluate_abc_digits(const infer::LoadedModel& loaded, const AbcDigitsEvalOptions& options,
                                    const Progress& progress = {});

/// {"task", "seed", "instances", "expand_windows", "lengths", "depths", "seconds",
///  "cells": [{"length", "depth", "prompt_tokens", "correct", "instances", "exact_match", "wilson_95": [low, high]}],
///  "by_length": the same over all depths, without depth}
nlohmann::json to_json(const AbcDigitsResult& result);

/// A table for the terminal, depths down and lengths across, in percent; with `colour` a heat map.
std::string to_table(const AbcDigitsResult& result, bool colour);

}  // namespace tamis::eval
