#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "tamis/models/exchange/format.h"

namespace tamis::models::exchange {

inline constexpr int64_t kShardBytes = int64_t{5} << 30;

struct ConvertOptions {
  std::string from;  // a format; empty: as recognised
  std::string to = "tamis";
  int64_t shard_bytes = kShardBytes;  // larger models are written as several files
  FormatOptions format;
};

struct Converted {
  std::string from, to;
  int64_t tensors = 0, parameters = 0, bytes = 0;
  std::vector<std::string> copied;  // files next to the model
  std::vector<std::string> notes;   // what the user should know, a sentence each
};

/// Called with bytes written and their sum.
using Progress = std::function<void(double done, double total)>;

/// Writes the model in `source`, a checkpoint or run directory, to the directory `target`, which appears all at once
/// and must not exist. Tensors keep their dtype and are read one at a time, so a model larger than the memory can be
/// converted. Tokenizer and generation settings are copied.
///
/// Throws ExitCode::kInput when the source is damaged, has a tensor too many or too few, a wrong shape or numbers that
/// are not finite, or computes what the target cannot; ExitCode::kUsage for unknown names and an existing target.
Converted convert(const std::filesystem::path& source, const std::filesystem::path& target,
                  const ConvertOptions& options, const Progress& progress = {});

}  // namespace tamis::models::exchange
