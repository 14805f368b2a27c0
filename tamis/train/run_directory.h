#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tamis/base/files.h"
#include "tamis/train/recipe.h"

namespace tamis::train {

/// The directory of one run, held by this process alone:
///
///   config.toml          the resolved recipe; can be trained from like any recipe
///   run.json             machine, versions, command, start, resumptions
///   log.jsonl            what happened, step by step
///   checkpoints/step-N/  after N steps
class RunDirectory {
 public:
  /// Makes and locks it. Throws ExitCode::kUsage when it holds other things than a run, ExitCode::kRuntime when another
  /// process has it, ExitCode::kStorage when it cannot be written.
  explicit RunDirectory(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  /// Throws ExitCode::kStorage when the directory was removed, renamed or replaced since: whatever is written now would
  /// be part of no run.
  void check_in_place() const;
  std::filesystem::path log() const { return path_ / "log.jsonl"; }
  std::filesystem::path checkpoint(int64_t step) const;

  /// Steps with a checkpoint, newest first; none when the directory is gone.
  std::vector<int64_t> saved_steps() const;

  struct Damaged {
    int64_t step;
    std::string reason;
  };
  struct Newest {
    std::optional<int64_t> step;   // newest checkpoint whose checksums hold
    std::vector<Damaged> damaged;  // those above it
  };
  Newest newest_intact() const;

  /// Renames a damaged checkpoint to step-N.damaged, so that nobody takes it for the newest; returns its new path.
  std::filesystem::path set_aside(int64_t step) const;
  /// Removes all but the `keep` newest checkpoints; 0 keeps all.
  void remove_old_checkpoints(int64_t keep) const;

  /// config.toml and run.json. A run that goes on (`step` > 0) keeps its run.json and adds the resumption. Returns the
  /// matmul peak of the machine in FLOP/s: measured when the run begins, or goes on elsewhere.
  double describe(const Recipe& recipe, at::Device device, int64_t step, int64_t parameters) const;

 private:
  std::filesystem::path path_;
  std::optional<FileLock> lock_;
  std::pair<uint64_t, uint64_t> lock_file_;  // its device and inode, which nobody else gets while it is open
};

/// Renames an existing run to DIR.1, or the first such name that is free, and returns it; empty when there is none.
std::filesystem::path move_run_aside(const std::filesystem::path& directory);

}  // namespace tamis::train
