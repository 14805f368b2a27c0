#include "tamis/data/registry.h"

#include <algorithm>
#include <array>
#include <iterator>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/data/abc_digits.h"
#include "tamis/data/copy.h"
#include "tamis/data/mqar.h"
#include "tamis/data/mqrar.h"
#include "tamis/data/needle.h"
#include "tamis/data/niah.h"
#include "tamis/data/passkey.h"
#include "tamis/data/variable_tracking.h"

namespace tamis::data {
namespace {

constexpr std::array kTasks = {
    abc_digits_tasks, copy_tasks, mqar_tasks,    mqrar_tasks,
    needle_tasks,     niah_tasks, passkey_tasks, variable_tracking_tasks,
};

}  // namespace

const std::vector<Task>& tasks() {
  static const std::vector<Task> all = [] {
    std::vector<Task> result;
    for (const auto make : kTasks) std::ranges::move(make(), std::back_inserter(result));
    std::ranges::sort(result, {}, &Task::name);
    return result;
  }();
  return all;
}

const Task& find_task(std::string_view name) {
  std::vector<std::string> known;
  for (const Task& task : tasks()) {
    if (task.name == name) return task;
    known.push_back(task.name);
  }
  throw Error(ExitCode::kUsage, unknown_name("task", name, known));
}

}  // namespace tamis::data
