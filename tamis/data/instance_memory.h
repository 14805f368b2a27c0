#pragma once

#include <cstdint>

#include "tamis/data/task.h"

namespace tamis::data {

/// Throws ExitCode::kRuntime when the available memory does not hold `instances` instances of up to `length` tokens,
/// and the temporary memory for generating one of them.
void require_memory_for(const Task& task, int64_t length, double instances);

}  // namespace tamis::data
