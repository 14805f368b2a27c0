#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::infer {

/// What the model's matrices are read as: the fewer bytes, the faster; rounded once from the checkpoint's float32.
enum class WeightFormat { kFloat32, kBFloat16, kInt8 };

/// Names for a command's option.
const std::map<std::string, WeightFormat>& weight_formats();

/// Throws ExitCode::kUsage on any other name.
WeightFormat weight_format_named(const std::string& name);

/// How the next token is drawn from logits z_n. In this order: p = softmax(z / temperature), the top_k likeliest, of
/// these (renormalised) the fewest likeliest that reach top_p, of these those with p >= min_p max(p), one draw.
struct SamplingOptions {
  double temperature = 0.0;  // 0 takes the likeliest token, the lowest id among equals
  int64_t top_k = 0;         // 0 keeps all
  double top_p = 1.0;        // in (0, 1]; 1 keeps all
  double min_p = 0.0;        // in [0, 1]; 0 keeps all
  uint64_t seed = 0;
};

/// Throws ExitCode::kUsage when an option is out of range.
void check_sampling(const SamplingOptions& options);

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  std::vector<std::string> stop = {};  // the text ends before the first of these
  bool expand_windows = false;         // SWE
  WeightFormat weights = WeightFormat::kFloat32;
  int64_t prefill_tokens = 2048;  // the prompt is read in chunks of this many tokens
};

/// Throws ExitCode::kUsage when the prompt or a stop string is empty.
void check_prompt(std::string_view prompt);
void check_stop(const std::vector<std::string>& stop);

/// Throws ExitCode::kUsage when an option is out of range.
void check_options(const GenerateOptions& options);

struct ScoreOptions {
  bool expand_windows = false;  // SWE
  WeightFormat weights = WeightFormat::kFloat32;
  int64_t chunk_tokens = 4096;  // read at once, over all sequences
};

}  // namespace tamis::infer
