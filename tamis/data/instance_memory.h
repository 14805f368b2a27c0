#pragma once

#include <cstdint>

#include "tamis/data/task.h"

namespace tamis::data {

/// Throws ExitCode::kRuntime when the memory that is left does not hold `instances` of up to `length` tokens together,
/// beside what making one takes.
void require_memory_for(const Task& task, int64_t length, double instances);

}  // namespace tamis::data
