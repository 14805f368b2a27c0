#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tamis/base/files.h"

namespace tamis::train {

/// log.jsonl: one JSON object a line, in order of "step" = number of steps done. docs/training.md has the records.
class Log {
 public:
  /// Opens `path` to append, after cutting off every record of a step beyond `step` and a line that a kill left
  /// unfinished: what follows `step` will be written again. Throws ExitCode::kStorage.
  Log(const std::filesystem::path& path, int64_t step);

  /// Adds "time", the wall-clock time in UTC.
  void write(nlohmann::json record);
  void sync() { file_.sync(); }

 private:
  FileWriter file_;
};

}  // namespace tamis::train
