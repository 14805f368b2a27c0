#include "tamis/train/run_directory.h"

#include <ATen/Parallel.h>
#include <fmt/chrono.h>

#include <algorithm>
#include <charconv>
#include <ctime>
#include <functional>

#include "tamis/base/error.h"
#include "tamis/train/machine.h"
#include "tamis/train/toml.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kCheckpointPrefix = "step-";

std::optional<int64_t> step_of(const fs::path& checkpoint) {
  const std::string name = checkpoint.filename().string();
  if (!name.starts_with(kCheckpointPrefix)) return {};
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data() + kCheckpointPrefix.size(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size()) return {};
  return step;
}

/// A run that was killed before its config.toml has at most these.
bool holds_something_else(const fs::path& directory) {
  if (fs::exists(directory / "config.toml")) return false;
  const auto foreign = [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return !name.starts_with(".") && name != "checkpoints";
  };
  return std::any_of(fs::directory_iterator(directory), fs::directory_iterator(), foreign);
}

std::string time_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(ExitCode::kStorage, "{}: cannot rename to {}: {}", from.string(), to.string(), error.message());
}

/// The first of base.1, base.2, ... that is free; `base` itself when that is.
fs::path free_name(const std::string& base) {
  fs::path name = base;
  for (int i = 1; fs::exists(name); ++i) name = fmt::format("{}.{}", base, i);
  return name;
}

}  // namespace

RunDirectory::RunDirectory(fs::path path) : path_(std::move(path)) {
  make_directories(path_);
  if (holds_something_else(path_)) {
    fail(ExitCode::kUsage, "{}: holds files, but no run; choose another run.dir", path_.string());
  }
  lock_.emplace(path_ / ".lock");
  make_directories(path_ / "checkpoints");
  remove_unfinished_writes(path_);
  remove_unfinished_writes(path_ / "checkpoints");
}

fs::path RunDirectory::checkpoint(int64_t step) const {
  return path_ / "checkpoints" / (std::string(kCheckpointPrefix) + std::to_string(step));
}

std::vector<int64_t> RunDirectory::saved_steps() const {
  std::vector<int64_t> steps;
  for (const auto& entry : fs::directory_iterator(path_ / "checkpoints")) {
    if (const auto step = step_of(entry.path())) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end(), std::greater<>());
  return steps;
}

RunDirectory::Newest RunDirectory::newest_intact() const {
  Newest newest;
  for (const int64_t step : saved_steps()) {
    std::string reason = find_damage(checkpoint(step));
    if (reason.empty()) {
      newest.step = step;
      break;
    }
    newest.damaged.push_back({step, std::move(reason)});
  }
  return newest;
}

fs::path RunDirectory::set_aside(int64_t step) const {
  const fs::path aside = free_name(checkpoint(step).string() + ".damaged");
  rename_or_fail(checkpoint(step), aside);
  return aside;
}

void RunDirectory::remove_old_checkpoints(int64_t keep) const {
  const std::vector<int64_t> steps = saved_steps();
  if (keep == 0) return;
  for (size_t i = keep; i < steps.size(); ++i) remove_directory(checkpoint(steps[i]));
}

double RunDirectory::describe(const Recipe& recipe, at::Device device, int64_t step, int64_t parameters) const {
  json machine = describe_machine();
  machine["threads"] = at::get_num_threads();
  machine["device"] = device.str();
  machine["precision"] = recipe.train.precision;
  json run = json::object();
  if (step > 0 && fs::exists(path_ / "run.json")) {
    run = json::parse(read_file(path_ / "run.json"), nullptr, /*allow_exceptions=*/false);
  }
  if (!run.is_object()) run = json::object();  // damaged: it only describes
  if (run.empty()) run = {{"started", time_now()}, {"command", command_line()}, {"parameters", parameters}};
  if (!run["resumed"].is_array()) run["resumed"] = json::array();
  if (step > 0) run["resumed"].push_back({{"step", step}, {"time", time_now()}, {"command", command_line()}});
  if (run.value("machine", json()) != machine || !run["matmul_flops"].is_number()) {
    run["machine"] = machine;
    run["matmul_flops"] =
        measure_matmul_flops(recipe.train.precision == "bfloat16" ? at::kBFloat16 : at::kFloat, device);
  }
  write_file_atomic(path_ / "config.toml", to_toml(to_json(recipe)));
  write_file_atomic(path_ / "run.json", run.dump(2) + "\n");
  return run["matmul_flops"];
}

fs::path move_run_aside(const fs::path& directory) {
  if (!fs::exists(directory)) return {};
  const RunDirectory held(directory);  // nobody else's
  const fs::path aside = free_name(directory.string());
  rename_or_fail(directory, aside);
  return aside;
}

}  // namespace tamis::train
