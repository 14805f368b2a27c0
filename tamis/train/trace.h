#pragma once

#include <cstdint>
#include <filesystem>

namespace tamis::train {

/// A trace of some steps by LibTorch's profiler, as JSON that chrome://tracing and https://ui.perfetto.dev read: every
/// operator, forward and backward, within the scopes `step N`, `layers.L`, the name of the mixer, `MLP`. Only the
/// thread that trains is traced; operators use their worker threads inside.
///
///   StepTrace trace(file, steps);
///   for every step: trace.begin_step(); ...; trace.end_step();
///   trace.finish();
///
/// The first kWarmSteps steps are left out, because they allocate memory. Costs nothing before and after.
class StepTrace {
 public:
  static constexpr int64_t kWarmSteps = 3;

  StepTrace(std::filesystem::path file, int64_t steps);
  ~StepTrace();  // stops the profiler; writes nothing
  StepTrace(const StepTrace&) = delete;
  StepTrace& operator=(const StepTrace&) = delete;

  /// Before each step: starts the profiler when the step is the first one to trace.
  void begin_step();
  /// After each step: writes the file atomically when the step was the last one to trace; then returns true. Throws
  /// ExitCode::kStorage.
  bool end_step();
  /// At the end of a run: writes what was traced, if the run had fewer steps; true if it wrote the file.
  bool finish();

  const std::filesystem::path& file() const { return file_; }
  /// Steps in the file, or so far.
  int64_t traced() const { return traced_; }

 private:
  std::filesystem::path file_;
  int64_t steps_;
  int64_t begun_ = 0, traced_ = 0;
  bool running_ = false;
};

}  // namespace tamis::train
