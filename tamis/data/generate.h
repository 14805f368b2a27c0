#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string_view>

#include "tamis/data/task.h"

namespace tamis::data {

/// One instance as JSON, with "task", "index", "seed", "length" (as requested), "prompt_tokens", "settings" if the task
/// has any, and:
///
///   text    "prompt", "answers": [texts], "answer_spans": [[begin, end], ..] in bytes of the prompt, "max_new_tokens",
///           and "depth" if there is a single needle
///   tokens  "ids", "answer_positions", "answers": [ids]
nlohmann::ordered_json to_json(const Task& task, const TaskRequest& request, uint64_t index, const Instance& instance);

/// Calls `write` with instances 0 .. count - 1, each as one line of JSON Lines. Throws like make_instance, and
/// ExitCode::kRuntime when an instance does not fit into the available memory.
void generate(const Task& task, const TaskRequest& request, int64_t count,
              const std::function<void(std::string_view line)>& write);

}  // namespace tamis::data
