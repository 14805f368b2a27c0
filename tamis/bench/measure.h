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
  double lower_quartile = 0, upper_quartile = 0;  // idem
  int64_t calls = 0;                              // measured, the warm-up not counted
  double page_faults = 0;                         // of a call, the mean
  int64_t peak_bytes = 0;                         // resident memory of the process, the most during the warm-up
  int64_t extra_bytes = 0;                        // of these, what was not resident before

  /// Distance of the quartiles, relative to the median.
  double spread() const { return (upper_quartile - lower_quartile) / median; }
};

/// The statistics of these call times; quartiles are interpolated. `seconds` is not empty.
Measurement summarise(std::vector<double> seconds);

/// Warms up by one call, for which memory is trimmed first, then calls until both `repeat` calls and `seconds` are
/// reached.
Measurement measure(const Work& work, const MeasureOptions& options);

/// Measures several works by turns, so that a load from outside meets all of them: what counts are ratios. Each gets
/// the calls that it needs by itself.
std::vector<Measurement> measure_in_turns(std::span<const Work> works, const MeasureOptions& options);

/// The most resident memory of this process since `start`. Where the kernel does not let the mark be reset, since the
/// process began.
class PeakMemory {
 public:
  PeakMemory();
  int64_t peak_bytes() const;
  int64_t extra_bytes() const;

 private:
  int64_t before_bytes_;
};

}  // namespace tamis::bench
