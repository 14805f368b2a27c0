#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "tamis/base/files.h"
#include "tamis/train/event_file.h"

namespace tamis::train {

/// log.jsonl: one JSON object per line, ordered by "step", the number of completed steps. docs/training.md describes
/// the records.
class Log {
 public:
  /// Opens `path` for appending. First removes the records of steps after `step`, which a resumed run writes again, and
  /// an incomplete last line. Throws ExitCode::kStorage.
  Log(const std::filesystem::path& path, int64_t step);

  /// Adds "time", the wall-clock time in UTC.
  void write(nlohmann::json record);
  void sync();
  /// From now on writes records to TensorBoard's event files in `directory` too (event_file.h).
  void add_events(const std::filesystem::path& directory, int64_t step) { events_.emplace(directory, step); }

 private:
  FileWriter file_;
  std::optional<EventFile> events_;
};

}  // namespace tamis::train
