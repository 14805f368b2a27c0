#include "tamis/data/task.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <bit>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::data {
namespace {

void check_names(const Task& task, const Settings& settings) {
  std::vector<std::string> known;
  for (const Setting& setting : task.settings) known.push_back(setting.name);
  for (const auto& [name, value] : settings) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    if (known.empty()) fail(ExitCode::kUsage, "{}: takes no setting, but got \"{}\"", task.name, name);
    fail(ExitCode::kUsage, "{}: {}", task.name, unknown_name("setting", name, known));
  }
}

void check_depth(const Task& task, const std::optional<double>& depth) {
  if (!depth) return;
  if (!task.takes_depth) fail(ExitCode::kUsage, "{}: takes no depth; its positions are random", task.name);
  if (!(*depth >= 0 && *depth <= 1)) fail(ExitCode::kUsage, "{}: depth must be in 0..1, but is {}", task.name, *depth);
}

}  // namespace

TaskRequest check_request(const Task& task, TaskRequest request) {
  check_names(task, request.settings);
  for (const Setting& setting : task.settings) {
    const int64_t value = request.settings.try_emplace(setting.name, setting.value).first->second;
    if (value >= setting.least && value <= setting.most) continue;
    fail(ExitCode::kUsage, "{}: {} must be in {}..{}, but is {}", task.name, setting.name, setting.least, setting.most,
         value);
  }
  if (task.check_settings != nullptr) task.check_settings(request.settings);
  check_depth(task, request.depth);
  const int64_t least = task.min_length(request.settings);
  if (request.length < least) {
    fail(ExitCode::kUsage, "{}: a length of {} tokens is too short; the least is {}", task.name, request.length, least);
  }
  return request;
}

int64_t vocab_size(const Task& task, const Settings& settings) {
  constexpr int64_t kBytes = 256, kLongEnough = int64_t{1} << 40;
  if (std::holds_alternative<TextTask>(task.kind)) return kBytes;
  return check_request(task, {.length = kLongEnough, .settings = settings}).settings.at("vocab");
}

void check_haystack(const Task& task, bool given) {
  if (given && task.haystack == HaystackUse::kNone) {
    fail(ExitCode::kUsage, "{}: takes no haystack; its filler is part of the task", task.name);
  }
  if (!given && task.haystack == HaystackUse::kRequired) {
    fail(ExitCode::kUsage,
         "{}: hides its needles in a long text, which is not part of Tamis (RULER uses Paul Graham's essays); "
         "give a text file with --haystack FILE, or in a recipe with haystack = \"FILE\"",
         task.name);
  }
}

Instance make_instance(const Task& task, const TaskRequest& request, uint64_t index) {
  TaskRequest checked = check_request(task, request);
  check_haystack(task, request.haystack != nullptr);
  if (task.takes_depth && !checked.depth) checked.depth = instance_random(kTaskDepth, checked, index).uniform();
  return std::visit([&](const auto& kind) -> Instance { return kind.instance(checked, index); }, task.kind);
}

std::string right_answer(const TextTask& task, const TextInstance& instance) {
  return fmt::format("{}{}", task.before_answers, fmt::join(instance.answers, std::string(task.between_answers)));
}

int64_t said_bytes(const TextTask& task, const TextInstance& instance) {
  return std::max(task.max_new_tokens, static_cast<int64_t>(right_answer(task, instance).size()));
}

Random instance_random(Stream stream, const TaskRequest& request, uint64_t index) {
  const double depth = request.depth.value_or(-1);
  return Random({stream, request.seed, static_cast<uint64_t>(request.length), std::bit_cast<uint64_t>(depth), index});
}

}  // namespace tamis::data
