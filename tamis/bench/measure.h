#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "tamis/bench/options.h"

namespace tamis::bench {

/// A piece of work to measure.
struct Work {
  std::function<void()> run;           // measured
  std::function<void()> prepare = {};  // before every run, not measured
};

struct Measurement {
  double median = 0, minimum = 0, maximum = 0;    // seconds of a call
  double lower_quartile = 0, upper_quartile = 0;  // likewise
  double mean = 0;                                // likewise: what counts where other programs interrupt calls
  int64_t calls = 0;                              // measured, the warm-up not counted
  double page_faults = 0;                         // of a call, the mean
  int64_t peak_bytes = 0;                         // peak resident memory of the process during the warm-up
  int64_t extra_bytes = 0;                        // of these, what was not resident before

  /// Distance of the quartiles, relative to the median.
  double spread() const { return (upper_quartile - lower_quartile) / median; }
};

/// The statistics of these call times; quartiles are interpolated. `seconds` is not empty.
Measurement summarise(std::vector<double> seconds);

/// Warms up by one call, for which memory is trimmed first, then calls until both `repeat` calls and `seconds` are
/// reached.
Measurement measure(const Work& work, const MeasureOptions& options);

/// Measures several works in interleaved calls, so that other load on the machine affects all of them alike and their
/// ratios hold. The number of calls is decided for each work by itself.
std::vector<Measurement> measure_interleaved(std::span<const Work> works, const MeasureOptions& options);

/// The peak of this process's resident memory since the object was made; where the kernel does not allow the peak to be
/// reset, since the process began.
class PeakMemory {
 public:
  PeakMemory();
  int64_t peak_bytes() const;
  int64_t extra_bytes() const;

 private:
  int64_t before_bytes_;
};

}  // namespace tamis::bench
