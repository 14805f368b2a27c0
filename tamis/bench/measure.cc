#include "tamis/bench/measure.h"

#include <malloc.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>
#include <string>

#include "tamis/base/memory.h"
#include "tamis/base/terminal.h"
#include "tamis/nn/tensor_memory.h"

namespace tamis::bench {
namespace {

int64_t high_water_bytes() {
  std::ifstream file("/proc/self/status");
  for (std::string name; file >> name;) {
    int64_t kilobytes = 0;
    if (name == "VmHWM:" && file >> kilobytes) return kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return resident_bytes();
}

double quantile(const std::vector<double>& sorted, double share) {
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], place - std::floor(place));
}

/// The measured calls of one work.
class Series {
 public:
  explicit Series(const Work& work) : work_(work) {}

  void warm_up() {
    if (work_.prepare) work_.prepare();
    trim_memory();
    malloc_trim(0);
    const PeakMemory memory;
    work_.run();
    peak_bytes_ = memory.peak_bytes();
    extra_bytes_ = memory.extra_bytes();
  }

  void call_once() const {
    if (work_.prepare) work_.prepare();
    work_.run();
  }

  void call() {
    if (work_.prepare) work_.prepare();
    const int64_t faults = nn::page_faults();
    const double before = now_seconds();
    work_.run();
    seconds_.push_back(now_seconds() - before);
    page_faults_ += nn::page_faults() - faults;
  }

  bool done(const MeasureOptions& options) const {
    return static_cast<int64_t>(seconds_.size()) >= options.repeat &&
           std::accumulate(seconds_.begin(), seconds_.end(), 0.0) >= options.seconds;
  }

  Measurement result() const {
    Measurement result = summarise(seconds_);
    result.page_faults = static_cast<double>(page_faults_) / static_cast<double>(result.calls);
    result.peak_bytes = peak_bytes_;
    result.extra_bytes = extra_bytes_;
    return result;
  }

 private:
  const Work& work_;
  std::vector<double> seconds_;
  int64_t page_faults_ = 0, peak_bytes_ = 0, extra_bytes_ = 0;
};

}  // namespace

Measurement summarise(std::vector<double> seconds) {
  std::sort(seconds.begin(), seconds.end());
  return {.median = quantile(seconds, 0.5),
          .minimum = seconds.front(),
          .maximum = seconds.back(),
          .lower_quartile = quantile(seconds, 0.25),
          .upper_quartile = quantile(seconds, 0.75),
          .mean = std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size()),
          .calls = static_cast<int64_t>(seconds.size())};
}

Measurement measure(const Work& work, const MeasureOptions& options) {
  return measure_interleaved({&work, 1}, options).front();
}

std::vector<Measurement> measure_interleaved(std::span<const Work> works, const MeasureOptions& options) {
  std::vector<Series> all(works.begin(), works.end());
  for (Series& series : all) series.warm_up();
  if (all.size() > 1) {
    for (Series& series : all) series.call_once();  // as each warm-up trimmed the memory kept by the one before
  }
  for (bool going = true; going;) {
    going = false;
    for (Series& series : all) {
      if (series.done(options)) continue;
      series.call();
      going = true;
    }
  }
  std::vector<Measurement> results;
  for (const Series& series : all) results.push_back(series.result());
  return results;
}

PeakMemory::PeakMemory() {
  std::ofstream("/proc/self/clear_refs") << "5";
  before_bytes_ = resident_bytes();
}

int64_t PeakMemory::peak_bytes() const {
  return high_water_bytes();
}

int64_t PeakMemory::extra_bytes() const {
  return std::max<int64_t>(0, peak_bytes() - before_bytes_);
}

}  // namespace tamis::bench
