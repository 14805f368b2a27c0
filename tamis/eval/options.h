#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tamis/data/task.h"

namespace tamis::eval {

/// What a task of data/registry.h is asked for; a cell is one length and depth.
struct TaskEvalOptions {
  std::string task = "abc_digits";
  std::vector<int64_t> lengths = {};       // tokens of the prompt at most
  std::vector<double> depths = {};         // of what is hidden, in [0, 1]; empty: drawn for each instance, or no matter
  int64_t instances = 20;                  // of each cell
  int64_t cell_tokens = 0;                 // > 0: tokens of a cell, about: fewer instances of long prompts, at least 1
  uint64_t seed = 0;                       // training never sees these, whatever its seed
  data::Settings settings = {};            // of the task; those missing are as it has them
  std::filesystem::path haystack = {};     // text file; empty: none
  bool expand_windows = true;              // SWE
  bool needle_score = false;               // where attention lies, of prompts with one answer; several times longer
  int64_t max_sequences = 64;              // read together at most
  int64_t chunk_tokens = 8192;             // read at once, over all sequences
  int64_t state_bytes = int64_t{1} << 30;  // decoding states held together, about
};

/// The task with its lengths and depths: from the length it is usually given to 16 times that, and five depths where it
/// takes them.
TaskEvalOptions default_options(const data::Task& task);

/// Instances of a cell of this length: as many as `cell_tokens` hold, if it says, from 1 to `instances`.
int64_t instances_of(const TaskEvalOptions& options, int64_t length);

/// Throws ExitCode::kUsage when the task is not known or an option is out of range, given twice or not for this task.
void check_options(const TaskEvalOptions& options);

struct LossEvalOptions {
  int64_t window_tokens = 0;    // context restarts every so many tokens; 0: the model's training length
  bool expand_windows = false;  // SWE
  int64_t chunk_tokens = 8192;  // read at once, over all windows
};

/// Throws ExitCode::kUsage when an option is out of range.
void check_options(const LossEvalOptions& options);

}  // namespace tamis::eval
