#include "tamis/data/options.h"

#include "tamis/base/error.h"
#include "tamis/data/registry.h"

namespace tamis::data {

void check_options(const GenerateOptions& options) {
  const Task& task = find_task(options.task);
  if (options.count < 1) {
    fail(ExitCode::kUsage, "{}: expected at least 1 instance, but got --count {}", task.name, options.count);
  }
  check_request(task, request_of(options));
  check_haystack(task, !options.haystack.empty());
}

TaskRequest request_of(const GenerateOptions& options, const Haystack* haystack) {
  return {.length = options.length,
          .depth = options.depth,
          .seed = options.seed,
          .settings = options.settings,
          .haystack = haystack};
}

}  // namespace tamis::data
