#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "tamis/base/files.h"
#include "tamis/train/event_file.h"
#include "tamis/train/non_finite.h"

namespace tamis::train {

/// log.jsonl: one JSON object per line, in the order of events, with "step", the number of completed steps.
/// docs/training.md describes the records.
class Log {
 public:
  /// Opens `path` for appending. First removes what a run that continues after `step` writes again: the records of
  /// later steps, those of non-finite steps and rollbacks that are not in `known`, and an incomplete last line. Throws
  /// ExitCode::kStorage.
  Log(const std::filesystem::path& path, int64_t step, const NonFiniteSteps& known = {});

  /// Adds "time", the wall-clock time in UTC.
  void write(nlohmann::json record);
  void sync();
  /// From now on writes records to TensorBoard's event files in `directory` too (event_file.h).
  void add_events(const std::filesystem::path& directory, int64_t step) { events_.emplace(directory, step); }

 private:
  FileWriter file_;
  std::optional<EventFile> events_;
};

/// The steps that the rollbacks in a run's log left out, in the order of events; none when there is no log.
std::vector<NonFiniteSteps::Range> read_left_out(const std::filesystem::path& log);

}  // namespace tamis::train
