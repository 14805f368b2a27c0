#pragma once

#include <string_view>
#include <vector>

#include "tamis/data/task.h"

namespace tamis::data {

/// All synthetic tasks, ordered by name.
const std::vector<Task>& tasks();

/// Throws ExitCode::kUsage with the closest known name when there is no such task.
const Task& find_task(std::string_view name);

}  // namespace tamis::data
