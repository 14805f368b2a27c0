#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace tamis::infer {

/// Format of the model's matrices during inference, rounded once from the checkpoint's float32. Decoding is limited by
/// memory bandwidth, so that smaller formats are faster.
enum class WeightFormat { kFloat32, kBFloat16, kInt8 };

/// The formats by the names that commands use.
const std::map<std::string, WeightFormat>& weight_formats();

/// Throws ExitCode::kUsage for an unknown name.
WeightFormat weight_format_named(const std::string& name);

/// How the next token is sampled from the logits z_n. In this order: p = softmax(z / temperature); keep the top_k
/// likeliest tokens; of these, renormalised, the fewest likeliest with a total probability of at least top_p; of these,
/// the ones with p >= min_p max(p); sample one.
struct SamplingOptions {
  double temperature = 0.0;  // 0: greedy, the likeliest token; ties go to the lowest id
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
  int64_t prefill_tokens = 2048;  // chunk size for reading the prompt
};

/// Throws ExitCode::kUsage when the prompt or a stop string is empty.
void check_prompt(std::string_view prompt);
void check_stop(const std::vector<std::string>& stop);

/// Throws ExitCode::kUsage when an option is out of range.
void check_options(const GenerateOptions& options);

struct ScoreOptions {
  bool expand_windows = false;  // SWE
  WeightFormat weights = WeightFormat::kFloat32;
  int64_t chunk_tokens = 4096;  // tokens per forward pass, over all sequences
  /// A new document begins after this token: it does not see what is before. Unset: all is one document.
  std::optional<int64_t> document_end = {};
};

}  // namespace tamis::infer
