#pragma once

#include <array>
#include <cstdint>

namespace tamis::threads {

/// Whether a team runs its regions with all of its threads or on the calling thread alone, by measurement.
///
/// A region is as fast as its last part. Where other programs use the cores, a thread may be preempted in the middle of
/// its part, for milliseconds, while all others wait; then one thread alone computes as much or more. What a setting
/// computes is its processor time in the parts of regions, without waiting, per second of regions. Alone it is at most
/// 1, so while all threads together reach 1 nothing else is tried. Below, the other setting is tried now and then.
/// Together they must compute 1.3 times as much to be kept: a thread alone leaves cores to other programs, and its own
/// share of time grows when the kernel has moved those there, later than a trial sees it. The choice does not change
/// the parts, so it does not change results.
///
/// Times are in nanoseconds. Not thread-safe.
class ThreadChoice {
 public:
  bool alone() const { return used_ == kAlone; }

  /// True for the regions to measure, a few of all outside of trials: reading the processor time costs a system call
  /// for every part.
  bool measures_next() { return used_ != kept_ || ++regions_ % kMeasured == 0; }

  /// The time `now`, and the duration and the processor time of all parts, without waiting, of a region that was
  /// measured.
  void measured(int64_t now, int64_t duration, int64_t computing_time);

 private:
  enum Setting { kTogether, kAlone };

  void end_of_period(int64_t now, double speed);

  static constexpr int64_t kMillisecond = 1'000'000;
  static constexpr unsigned kMeasured = 4;                      // one region in four
  static constexpr int64_t kPeriod = 10 * kMillisecond;         // of measured regions: several time slices of a thread
  static constexpr int64_t kTrial = 40 * kMillisecond;          // the same for a trial of the other setting
  static constexpr int64_t kFirstWait = 200 * kMillisecond;     // until the next trial
  static constexpr int64_t kLongestWait = 4000 * kMillisecond;  // the wait doubles while trials are of no use
  static constexpr double kNewest = 0.25;                       // weight of the newest period in a setting's speed
  static constexpr double kWorthIt = 1.3;  // so much more has to be computed together, where it is less than 1

  Setting kept_ = kTogether, used_ = kTogether;  // they differ during a trial
  std::array<double, 2> speeds_{};               // of both settings when they were used last; 0: never
  int64_t duration_ = 0, computing_time_ = 0;    // of this period
  int64_t wait_ = kFirstWait, next_trial_ = 0;
  unsigned regions_ = 0;
};

}  // namespace tamis::threads
