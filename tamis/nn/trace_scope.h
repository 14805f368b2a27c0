#pragma once

#include <ATen/record_function.h>

#include <string>
#include <string_view>

namespace tamis::nn {

/// Names what this thread executes until the end of the scope, for a trace by LibTorch's profiler. Costs some
/// nanoseconds when there is none.
class TraceScope {
 public:
  explicit TraceScope(std::string_view name) : record_(at::RecordScope::USER_SCOPE) {
    if (record_.isActive()) record_.before(std::string(name));
  }

 private:
  at::RecordFunction record_;
};

}  // namespace tamis::nn
