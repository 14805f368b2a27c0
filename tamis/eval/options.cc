#include "tamis/eval/options.h"

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/data/abc_digits.h"

namespace tamis::eval {
namespace {

/// One or more values, each once: a cell of the result stands for one length and depth.
template <typename Number>
void check_list(const char* name, const std::vector<Number>& values) {
  if (values.empty()) fail(ExitCode::kUsage, "abc_digits: no {} given; expected at least one", name);
  for (auto value = values.begin(); value != values.end(); ++value) {
    if (std::find(values.begin(), value, *value) == value) continue;
    fail(ExitCode::kUsage, "abc_digits: {} holds {} twice; give each once", name, *value);
  }
}

}  // namespace

void check_options(const AbcDigitsEvalOptions& options) {
  check_list("lengths", options.lengths);
  check_list("depths", options.depths);
  if (options.instances < 1) {
    fail(ExitCode::kUsage, "abc_digits: instances must be at least 1, but are {}", options.instances);
  }
  for (const int64_t length : options.lengths) {
    for (const double depth : options.depths) data::check_abc_digits_instance(length, depth);
  }
}

void check_options(const LossEvalOptions& options) {
  if (options.window_tokens < 0) {
    fail(ExitCode::kUsage, "loss: the window must be at least 1 token, but is {}", options.window_tokens);
  }
}

}  // namespace tamis::eval
