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
/// All threads are kept if together they reach 1, or 1.3 times what one computes alone: a thread alone leaves cores to
/// other programs, and gets more time once the kernel has moved those there, for which a trial is too short. The choice
/// does not change the parts, so it does not change results.
///
/// Times are in nanoseconds. Not thread-safe.
class ThreadChoice {
 public:
  bool alone() const { return used_ == kAlone; }

  /// True for the regions to measure: all in a trial, otherwise one in four at random, as reading the processor time
  /// costs a system call for every part.
  bool begin_region() {
    random_ = random_ * 1'664'525 + 1'013'904'223;  // regular gaps could fall in step with a model's regions
    return used_ != kept_ || random_ < kMeasured;
  }

  /// The time `now`, and of a region to measure the duration and the processor time of all parts without waiting.
  void measured(int64_t now, int64_t duration, int64_t computing_time);

 private:
  enum Setting { kTogether, kAlone };

  void end_of_period(int64_t now, double speed);

  static constexpr int64_t kMillisecond = 1'000'000;
  static constexpr uint32_t kMeasured = 1u << 30;               // of 2^32: one region in four
  static constexpr int64_t kPeriod = 10 * kMillisecond;         // of measured regions: several time slices of a thread
  static constexpr int64_t kTrial = 40 * kMillisecond;          // the same for a trial of the other setting
  static constexpr int64_t kFirstWait = 200 * kMillisecond;     // from a trial that changed the setting to the next
  static constexpr int64_t kLongestWait = 4000 * kMillisecond;  // the wait doubles with each trial that did not
  static constexpr double kNewest = 0.25;                       // weight of the newest period in a setting's speed
  static constexpr double kLeastGain = 1.3;                     // of all threads together over one alone, below 1

  Setting kept_ = kTogether, used_ = kTogether;  // they differ during a trial
  std::array<double, 2> speeds_{};               // of both settings when they were used last; 0: never
  int64_t duration_ = 0, computing_time_ = 0;    // of this period
  int64_t wait_ = kFirstWait, next_trial_ = 0;
  uint32_t random_ = 0;
};

}  // namespace tamis::threads
