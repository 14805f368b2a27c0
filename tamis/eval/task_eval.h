#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tamis/eval/options.h"
#include "tamis/eval/progress.h"
#include "tamis/infer/load.h"

namespace tamis::eval {

struct TaskCell {
  int64_t length = 0;
  std::optional<double> depth = std::nullopt;  // none: drawn, or the task has none
  int64_t prompt_tokens = 0;                   // of the longest prompt
  int64_t instances = 0;
  int64_t correct = 0;         // instances with score 1
  double score_sum = 0;        // of scores in [0, 1]
  double needle_sum = 0;       // of needle scores, where they were asked for
  double needle_best_sum = 0;  // idem, of the head with most
};

struct TaskResult {
  TaskEvalOptions options;
  std::vector<TaskCell> cells = {};  // by length, then depth
  double seconds = 0;

  /// All depths of one length together.
  TaskCell total(int64_t length) const;
};

/// How well a model does a task of data/registry.h. Text: the prompt is continued greedily by data::said_bytes
/// bytes, up to an end-of-text token, and scored by the task. Token ids: the sequence is read once, and the score is
/// the share of the answers that are the likeliest id at their positions. Prompts of equally many tokens are read
/// together, in chunks, as many as `state_bytes` allows: those read before tell how much one needs. Throws
/// ExitCode::kUsage on options out of range, and when a task of token ids has more of them than the model.
///
/// The needle score (Scalable-Softmax, arXiv 2501.19399) is the share of the attention of a prompt's last token, which
/// the first token of the answer comes from, that lies on the one place of the prompt that tells the answer: the mean
/// over the heads of all layers, and the head with most.
TaskResult evaluate_task(const infer::LoadedModel& loaded, const TaskEvalOptions& options,
                         const Progress& progress = {});

/// {"task", "seed", "instances", "expand_windows", "lengths", "depths", "seconds", and where there are any "settings",
///  "cell_tokens", "haystack",
///  "cells": [{"length", "depth" where one was given, "prompt_tokens", "correct", "instances", "exact_match",
///             "wilson_95": [low, high] of the exact match, "score", and where they were asked for
///             "needle_score", "needle_score_best_head"}],
///  "by_length": the same over all depths, without depth}
nlohmann::json to_json(const TaskResult& result);

/// A table for the terminal, depths down and lengths across, in percent; with `colour` a heat map. Where the score is
/// not the exact match, the score, and the exact match of all depths below it.
std::string to_table(const TaskResult& result, bool colour);

}  // namespace tamis::eval
