#include "tamis/eval/options.h"

#include <algorithm>

#include "tamis/base/error.h"
#include "tamis/data/registry.h"

namespace tamis::eval {
namespace {

constexpr int64_t kMostPoints = 1000000;  // of a loss

/// Throws when a value occurs twice: each pair of length and depth is one cell of the result.
template <typename Number>
void check_list(const std::string& task, const char* name, const std::vector<Number>& values) {
  for (auto value = values.begin(); value != values.end(); ++value) {
    if (std::find(values.begin(), value, *value) == value) continue;
    fail(ExitCode::kUsage, "{}: {} holds {} twice; give each once", task, name, *value);
  }
}

}  // namespace

TaskEvalOptions default_options(const data::Task& task) {
  TaskEvalOptions options{.task = task.name};
  for (const int64_t times : {1, 2, 4, 8, 16}) options.lengths.push_back(times * task.default_length);
  if (task.name == "abc_digits") options.lengths = {256, 512, 1024, 2048, 4096, 16384};
  if (task.takes_depth) options.depths = {0.1, 0.3, 0.5, 0.7, 0.9};
  return options;
}

int64_t instances_of(const TaskEvalOptions& options, int64_t length) {
  if (options.cell_tokens == 0) return options.instances;
  return std::clamp<int64_t>(options.cell_tokens / length, 1, options.instances);
}

void check_options(const TaskEvalOptions& options) {
  const data::Task& task = data::find_task(options.task);
  if (options.lengths.empty()) fail(ExitCode::kUsage, "{}: no lengths given; expected at least one", task.name);
  check_list(task.name, "lengths", options.lengths);
  check_list(task.name, "depths", options.depths);
  if (options.instances < 1) {
    fail(ExitCode::kUsage, "{}: the number of instances must be at least 1, but is {}", task.name, options.instances);
  }
  if (options.cell_tokens < 0) {
    fail(ExitCode::kUsage, "{}: the number of tokens per cell must be 0 (no limit) or more, but is {}", task.name,
         options.cell_tokens);
  }
  for (const int64_t length : options.lengths) {
    data::check_request(task, {.length = length, .settings = options.settings});
    for (const double depth : options.depths) data::check_request(task, {length, depth, 0, options.settings});
  }
  if (options.needle_score && !std::holds_alternative<data::TextTask>(task.kind)) {
    fail(ExitCode::kUsage, "{}: has no needle score; only texts with one answer have one, such as needle and passkey",
         task.name);
  }
  if (options.skip_end_of_text && !std::holds_alternative<data::TextTask>(task.kind)) {
    fail(ExitCode::kUsage, "{}: asks for single ids, not for a text that may end", task.name);
  }
  data::check_haystack(task, !options.haystack.empty());
}

void check_options(const LossEvalOptions& options) {
  if (options.window_tokens < 0) {
    fail(ExitCode::kUsage, "loss: the window must be at least 1 token, but is {}", options.window_tokens);
  }
  if (options.points < 0 || options.points > kMostPoints) {
    fail(ExitCode::kUsage, "loss: the number of points must be from 0 to {}, but is {}", kMostPoints, options.points);
  }
  if (!(options.smooth >= 0 && options.smooth <= 1)) {
    fail(ExitCode::kUsage, "loss: smooth is a share of the window, from 0 to 1, but is {}", options.smooth);
  }
  if (options.smooth > 0 && options.points == 0) {
    fail(ExitCode::kUsage, "loss: smooth needs points, such as 100");
  }
}

}  // namespace tamis::eval
