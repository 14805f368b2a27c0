#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tamis/data/task.h"

namespace tamis::eval {

/// How to evaluate a task of tamis/data/registry.h. A cell is one pair of length and depth.
struct TaskEvalOptions {
  std::string task = "abc_digits";
  std::vector<int64_t> lengths = {};       // most tokens of a prompt
  std::vector<double> depths = {};         // of the needle, in [0, 1]; empty: drawn for each instance, if there is one
  int64_t instances = 20;                  // per cell
  int64_t cell_tokens = 0;                 // > 0: approximate limit for the tokens of a cell; at least one instance
  uint64_t seed = 0;                       // training never draws the same instances, for any seed
  data::Settings settings = {};            // of the task; missing ones have the task's defaults
  std::filesystem::path haystack = {};     // text file; empty: none
  bool expand_windows = true;              // SWE
  bool needle_score = false;               // measure the attention on the answer; takes several times longer
  bool skip_end_of_text = false;           // texts: continue with the likeliest token that does not end the text
  int64_t max_sequences = 64;              // largest batch
  int64_t chunk_tokens = 8192;             // tokens per forward pass, over all sequences
  int64_t state_bytes = int64_t{1} << 30;  // approximate limit for the decoding states of a batch
};

/// Default lengths and depths for the task: 1 to 16 times its default length, and five depths if it has a depth.
TaskEvalOptions default_options(const data::Task& task);

/// Number of instances per cell of this length: `instances`, or fewer (at least 1) to stay within `cell_tokens`.
int64_t instances_of(const TaskEvalOptions& options, int64_t length);

/// Throws ExitCode::kUsage when the task is unknown, or when an option is out of range, has duplicates or does not
/// apply to the task.
void check_options(const TaskEvalOptions& options);

struct LossEvalOptions {
  int64_t window_tokens = 0;    // tokens after which the context restarts; 0: the model's training length
  bool middle = false;          // of each text only the window in its middle; texts that are shorter are left out
  int64_t points = 0;           // also report the loss at this many evenly spaced positions of the window
  double smooth = 0;            // each point is a mean over this share of the window, centred on it
  bool expand_windows = false;  // SWE
  int64_t chunk_tokens = 8192;  // tokens per forward pass, over all windows
};

/// Throws ExitCode::kUsage when an option is out of range.
void check_options(const LossEvalOptions& options);

}  // namespace tamis::eval
