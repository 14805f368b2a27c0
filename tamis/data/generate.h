#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tamis/data/task.h"

namespace tamis::data {

/// One instance as JSON. All have "task", "index", "seed", "length" (asked for), "prompt_tokens" and, where the task
/// has settings, "settings".
///
///   text    "prompt", "answers": [texts], "answer_spans": [[begin, end], ..] in bytes of the prompt, "depth" where one
///           thing is hidden, "max_new_tokens"
///   tokens  "ids", "answer_positions", "answers": [ids]
nlohmann::ordered_json to_json(const Task& task, const TaskRequest& request, uint64_t index, const Instance& instance);

/// Gives `write` instances 0 .. count - 1 as JSON Lines, one at a time. Throws as make_instance does, and
/// ExitCode::kRuntime when an instance does not fit into the memory that is left.
void generate(const Task& task, const TaskRequest& request, int64_t count,
              const std::function<void(std::string_view line)>& write);

}  // namespace tamis::data
