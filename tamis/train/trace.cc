#include "tamis/train/trace.h"

#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/files.h"

namespace tamis::train {
namespace {

namespace fs = std::filesystem;
namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;

/// A file that is removed at the end of the scope.
struct ScratchFile {
  fs::path path = fs::temp_directory_path() / fmt::format("tamis-trace-{}.json", getpid());
  ScratchFile() = default;
  ~ScratchFile() {
    std::error_code ignored;
    fs::remove(path, ignored);
  }
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;
};

void start_profiler() {
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<ActivityType> activities = {ActivityType::CPU};
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(
      config, activities, {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION, at::RecordScope::USER_SCOPE});
}

}  // namespace

StepTrace::StepTrace(fs::path file, int64_t steps) : file_(std::move(file)), steps_(steps) {
  setenv("KINETO_LOG_LEVEL", "5", /*overwrite=*/0);  // its messages about starting and stopping are not for users
}

StepTrace::~StepTrace() {
  if (!running_) return;
  try {
    profiler::disableProfiler();
  } catch (const std::exception&) {  // the run ends with an error of its own
  }
}

void StepTrace::begin_step() {
  if (begun_++ != kWarmSteps) return;
  start_profiler();
  running_ = true;
}

bool StepTrace::end_step() {
  if (!running_) return false;
  traced_ += 1;
  return traced_ == steps_ && finish();
}

bool StepTrace::finish() {
  if (!running_) return false;
  running_ = false;
  const auto result = profiler::disableProfiler();
  const ScratchFile scratch;  // the profiler itself writes in place, and reports no failure
  result->save(scratch.path.string());
  if (!fs::exists(scratch.path) || fs::file_size(scratch.path) == 0) {
    fail(ExitCode::kStorage, "{}: cannot write the trace, of which {} is a copy; is the disk full?", file_.string(),
         scratch.path.string());
  }
  write_file_atomic(file_, read_file(scratch.path));
  return true;
}

}  // namespace tamis::train
