#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tamis/base/files.h"

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
  void sync() { file_.sync(); }

 private:
  FileWriter file_;
};

}  // namespace tamis::train
