#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tamis/distributed/process_group.h"
#include "tamis/eval/options.h"
#include "tamis/eval/progress.h"
#include "tamis/infer/load.h"

namespace tamis::eval {

struct TaskCell {
  int64_t length = 0;
  std::optional<double> depth = std::nullopt;  // none: drawn for each instance, or the task has no depth
  int64_t prompt_tokens = 0;                   // length of the longest prompt
  int64_t instances = 0;
  int64_t correct = 0;         // number of instances with score 1
  double score_sum = 0;        // sum of the scores, each in [0, 1]
  double needle_sum = 0;       // sum of the needle scores (mean over heads), if they were requested
  double needle_best_sum = 0;  // the same for the head with the largest score
};

/// An instance whose needle scores were requested.
struct NeedleTrial {
  size_t cell = 0;           // of TaskResult::cells
  bool right = false;        // its score is 1
  bool first_right = false;  // the continuation begins with the first character of the answer
  at::Tensor needle_LH;      // needle score of every head
};

struct TaskResult {
  TaskEvalOptions options;
  std::vector<TaskCell> cells = {};      // by length, then depth
  std::vector<NeedleTrial> trials = {};  // in no fixed order; with several processes those of this one
  double seconds = 0;

  /// The sum of all cells of one length.
  TaskCell total(int64_t length) const;
};

/// Evaluates a model on a task of tamis/data/registry.h.
///
///   text tasks   the prompt is continued greedily by data::said_bytes bytes or up to an end-of-text token, and the
///   task
///                scores the continuation
///   token tasks  the sequence is read once; the score is the share of answers that have the largest logit at their
///                positions
///
/// Prompts with the same number of tokens are read as one batch, in chunks. The batch size is limited by `state_bytes`,
/// given the state size that the previous batch had. Throws ExitCode::kUsage when options are out of range, and when a
/// token task has more ids than the model's vocabulary.
///
/// The needle score (Scalable-Softmax, arXiv 2501.19399) is the share of the attention of the prompt's last token,
/// which predicts the first token of the answer, that lies on the answer span: the mean over all heads of all layers,
/// and the largest of any head.
///
/// The processes of `group` divide the instances: all return the result that a single one has.
TaskResult evaluate_task(const infer::LoadedModel& loaded, const TaskEvalOptions& options,
                         const Progress& progress = {}, distributed::ProcessGroup* group = nullptr);

/// {"task", "seed", "instances", "expand_windows", "lengths", "depths", "seconds"; if given: "settings", "cell_tokens",
///  "haystack";
///  "cells": [{"length", "prompt_tokens", "correct", "instances", "exact_match", "score",
///             "wilson_95": [low, high] of the exact match; if given: "depth"; if requested: "needle_score",
///             "needle_score_best_head"}],
///  "by_length": the same summed over depths, without "depth"}
nlohmann::json to_json(const TaskResult& result);

/// A table for the terminal with a row per depth and a column per length, in percent; with `colour` a heat map. It
/// shows the score and, if that differs from the exact match, a row with the exact match of all depths.
std::string to_table(const TaskResult& result, bool colour);

}  // namespace tamis::eval
