#pragma once

#include <cstdint>
#include <vector>

namespace tamis::eval {

struct AbcDigitsEvalOptions {
  std::vector<int64_t> lengths = {256, 512, 1024, 2048, 4096, 16384};  // tokens of the prompt
  std::vector<double> depths = {0.1, 0.3, 0.5, 0.7, 0.9};              // of the target line, in [0, 1]
  int64_t instances = 20;                                              // of each length and depth
  uint64_t seed = 0;                                                   // training never sees these, whatever its seed
  bool expand_windows = true;                                          // SWE
  int64_t max_sequences = 64;                                          // read together at most
  int64_t chunk_tokens = 8192;                                         // read at once, over all sequences
  int64_t state_bytes = int64_t{1} << 30;                              // decoding states held together, about
};

/// Throws ExitCode::kUsage when an option is out of range or given twice.
void check_options(const AbcDigitsEvalOptions& options);

struct LossEvalOptions {
  int64_t window_tokens = 0;    // context restarts every so many tokens; 0: the model's training length
  bool expand_windows = false;  // SWE
  int64_t chunk_tokens = 8192;  // read at once, over all windows
};

/// Throws ExitCode::kUsage when an option is out of range.
void check_options(const LossEvalOptions& options);

}  // namespace tamis::eval
