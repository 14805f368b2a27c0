#include "tamis/infer/options.h"

#include <cmath>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::infer {

const std::map<std::string, WeightFormat>& weight_formats() {
  static const std::map<std::string, WeightFormat> formats = {
      {"float32", WeightFormat::kFloat32}, {"bfloat16", WeightFormat::kBFloat16}, {"int8", WeightFormat::kInt8}};
  return formats;
}

WeightFormat weight_format_named(const std::string& name) {
  const auto& formats = weight_formats();
  if (const auto found = formats.find(name); found != formats.end()) return found->second;
  std::vector<std::string> known;
  for (const auto& [each, format] : formats) known.push_back(each);
  throw Error(ExitCode::kUsage, unknown_name("format of weights", name, known));
}

void check_sampling(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature)) {
    fail(ExitCode::kUsage, "temperature must be 0 or more, but is {}", options.temperature);
  }
  if (options.top_k < 0) fail(ExitCode::kUsage, "top-k must be 0 (all) or more, but is {}", options.top_k);
  if (!(options.top_p > 0 && options.top_p <= 1))
    fail(ExitCode::kUsage, "top-p must be in (0, 1], but is {}", options.top_p);
  if (!(options.min_p >= 0 && options.min_p <= 1))
    fail(ExitCode::kUsage, "min-p must be in [0, 1], but is {}", options.min_p);
}

void check_prompt(std::string_view prompt) {
  if (prompt.empty()) fail(ExitCode::kUsage, "generate: the prompt is empty; expected at least one character");
}

void check_stop(const std::vector<std::string>& stop) {
  for (const std::string& each : stop) {
    if (each.empty()) fail(ExitCode::kUsage, "a stop string is empty; expected at least one character");
  }
}

void check_options(const GenerateOptions& options) {
  check_sampling(options.sampling);
  check_stop(options.stop);
  if (options.max_new_tokens < 1) {
    fail(ExitCode::kUsage, "generate: max-new-tokens must be at least 1, but is {}", options.max_new_tokens);
  }
}

}  // namespace tamis::infer
