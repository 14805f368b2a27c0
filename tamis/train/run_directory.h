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

/// RUN/checkpoints/step-N.
std::filesystem::path checkpoint_directory(const std::filesystem::path& run, int64_t step);
/// Steps with a checkpoint, newest first; none when the directory does not exist.
std::vector<int64_t> saved_steps(const std::filesystem::path& run);

/// The directory of a run, locked by this process:
///
///   config.toml          the resolved recipe; `tamis train` accepts it like any recipe
///   run.json             machine, versions, command, start, resumptions
///   log.jsonl            records of losses, validations and samples (log.h)
///   tensorboard/         the same for TensorBoard (event_file.h)
///   checkpoints/step-N/  the checkpoint after N steps
class RunDirectory {
 public:
  /// Creates the directory if necessary and locks it. Throws ExitCode::kUsage when it contains other files than those
  /// of a run, ExitCode::kRuntime when another process has locked it, ExitCode::kStorage when it cannot be written.
  explicit RunDirectory(std::filesystem::path path);

  const std::filesystem::path& path() const { return path_; }
  /// Throws ExitCode::kStorage when the directory was removed, renamed or replaced since construction.
  void check_in_place() const;
  std::filesystem::path log() const { return path_ / "log.jsonl"; }
  std::filesystem::path checkpoint(int64_t step) const { return checkpoint_directory(path_, step); }

  std::vector<int64_t> saved_steps() const { return train::saved_steps(path_); }

  struct Damaged {
    int64_t step;
    std::string reason;
  };
  struct Newest {
    std::optional<int64_t> step;   // the newest checkpoint with valid checksums
    std::vector<Damaged> damaged;  // newer checkpoints
  };
  Newest newest_intact() const;

  /// Renames a damaged checkpoint to step-N.damaged, so that it is no longer found as the newest; returns its new path.
  std::filesystem::path set_aside(int64_t step) const;
  /// Removes all but the `keep` newest checkpoints and those of every multiple of `keep_every` steps; keep 0 keeps all,
  /// keep_every 0 none of the older ones.
  void remove_old_checkpoints(int64_t keep, int64_t keep_every = 0) const;

  /// Writes config.toml and run.json. A resumed run (`step` > 0) keeps its run.json and adds the resumption. Returns
  /// the matmul peak of all processes in FLOP/s: that of one is measured when the run starts or when it resumes on
  /// another machine.
  double describe(const Recipe& recipe, at::Device device, int64_t step, int64_t parameters,
                  int64_t processes = 1) const;

 private:
  std::filesystem::path path_;
  std::optional<FileLock> lock_;
  std::pair<uint64_t, uint64_t> lock_file_;  // device and inode; not reused for other files while the lock is open
};

/// Renames an existing run to DIR.1, or the next unused number, and returns the new path; empty when there is no run.
std::filesystem::path move_run_aside(const std::filesystem::path& directory);

}  // namespace tamis::train
