#include "tamis/train/run_directory.h"

#include <ATen/Parallel.h>
#include <sys/stat.h>

#include <algorithm>
#include <functional>

#include "tamis/base/error.h"
#include "tamis/base/json.h"
#include "tamis/models/checkpoint.h"
#include "tamis/models/manifest.h"
#include "tamis/train/machine.h"
#include "tamis/train/toml.h"
#include "tamis/train/training_checkpoint.h"

namespace tamis::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view kCheckpointPrefix = "step-";

/// A checkpoint contains the recipe, so a directory with a checkpoint is a run even without config.toml.
bool has_checkpoint(const fs::path& directory) {
  std::error_code none;
  const fs::directory_iterator entries(directory / "checkpoints", none);
  return std::any_of(begin(entries), end(entries), [](const fs::directory_entry& entry) {
    return models::step_of(entry.path()) && fs::exists(entry.path() / models::kManifestFile);
  });
}

/// True when the directory contains files but no run. A run that was killed before it wrote config.toml contains only
/// checkpoints/ and hidden files.
bool holds_something_else(const fs::path& directory) {
  if (fs::exists(directory / "config.toml") || has_checkpoint(directory)) return false;
  const auto foreign = [](const fs::directory_entry& entry) {
    const std::string name = entry.path().filename().string();
    return !name.starts_with(".") && name != "checkpoints";
  };
  return std::any_of(fs::directory_iterator(directory), fs::directory_iterator(), foreign);
}

/// Device and inode; zeros when there is no such file.
std::pair<uint64_t, uint64_t> identity_of(const fs::path& file) {
  struct stat status {};
  if (stat(file.c_str(), &status) != 0) return {};
  return {status.st_dev, status.st_ino};
}

void rename_or_fail(const fs::path& from, const fs::path& to) {
  std::error_code error;
  fs::rename(from, to, error);
  if (error) fail(ExitCode::kStorage, "{}: cannot rename to {}: {}", from.string(), to.string(), error.message());
}

/// The first unused name among base, base.1, base.2, ...
fs::path free_name(const std::string& base) {
  fs::path name = base;
  for (int i = 1; fs::exists(name); ++i) name = fmt::format("{}.{}", base, i);
  return name;
}

}  // namespace

RunDirectory::RunDirectory(fs::path path) : path_(std::move(path)) {
  make_directories(path_);
  if (holds_something_else(path_)) {
    fail(ExitCode::kUsage, "{}: contains files, but no run; choose another run.dir", path_.string());
  }
  lock_.emplace(path_ / ".lock");
  lock_file_ = identity_of(path_ / ".lock");
  make_directories(path_ / "checkpoints");
  remove_unfinished_writes(path_);
  remove_unfinished_writes(path_ / "checkpoints");
}

void RunDirectory::check_in_place() const {
  if (identity_of(path_ / ".lock") == lock_file_) return;
  fail(ExitCode::kStorage, "{}: was removed, renamed or replaced during the run; training stops", path_.string());
}

fs::path checkpoint_directory(const fs::path& run, int64_t step) {
  return run / "checkpoints" / (std::string(kCheckpointPrefix) + std::to_string(step));
}

std::vector<int64_t> saved_steps(const fs::path& run) {
  std::vector<int64_t> steps;
  std::error_code gone;
  for (auto entry = fs::directory_iterator(run / "checkpoints", gone); !gone && entry != fs::directory_iterator();
       entry.increment(gone)) {
    if (const auto step = models::step_of(entry->path())) steps.push_back(*step);
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

void RunDirectory::remove_old_checkpoints(int64_t keep, int64_t keep_every) const {
  const std::vector<int64_t> steps = saved_steps();
  if (keep == 0) return;
  for (size_t i = keep; i < steps.size(); ++i) {
    if (keep_every == 0 || steps[i] % keep_every != 0) remove_directory(checkpoint(steps[i]));
  }
}

double RunDirectory::describe(const Recipe& recipe, at::Device device, int64_t step, int64_t parameters,
                              int64_t processes) const {
  json machine = describe_machine();
  machine["threads"] = at::get_num_threads();
  if (processes > 1) machine["processes"] = processes;
  machine["device"] = device.str();
  machine["precision"] = recipe.train.precision;
  json run = json::object();
  if (step > 0 && fs::exists(path_ / "run.json")) {
    run = try_parse_json(read_file(path_ / "run.json"));
  }
  if (!run.is_object()) run = json::object();  // a damaged run.json is replaced; training does not depend on it
  if (run.empty()) {
    run = {{"started", utc_now()}, {"command", command_line()}, {"commit", build_commit()}, {"parameters", parameters}};
  }
  if (!run["resumed"].is_array()) run["resumed"] = json::array();
  if (step > 0) {
    run["resumed"].push_back(
        {{"step", step}, {"time", utc_now()}, {"command", command_line()}, {"commit", build_commit()}});
  }
  if (run.value("machine", json()) != machine || !run["matmul_flops"].is_number()) {
    run["machine"] = machine;
    run["matmul_flops"] = measure_matmul_flops(compute_dtype(recipe.train.precision), device);
  }
  write_file_atomic(path_ / "config.toml", to_toml(to_json(recipe)));
  write_file_atomic(path_ / "run.json", json_text(run, 2));
  return run["matmul_flops"].get<double>() * static_cast<double>(processes);
}

fs::path move_run_aside(const fs::path& directory) {
  if (!fs::exists(directory)) return {};
  const RunDirectory locked(directory);  // throws when another process uses it
  const fs::path aside = free_name(directory.string());
  rename_or_fail(directory, aside);
  return aside;
}

}  // namespace tamis::train
