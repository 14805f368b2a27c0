#pragma once

#include <atomic>
#include <cstdint>

namespace tamis::threads {

/// A 32-bit value that some threads change and others wait on.
///
/// A thread that spins sees a change within 0.1 microseconds; a thread that sleeps in the kernel (futex) needs 5 to 50
/// microseconds. On an oversubscribed machine, however, spinning uses up the thread's time slice, and the thread is
/// preempted just when there is work for it. So a thread spins for at most 500 microseconds. When that was of no use,
/// because the time ran out or the thread was preempted, it does not spin again for 16 times the time that was lost.
class alignas(64) Event {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }

  /// To be called only while no thread waits.
  void reset(uint32_t value) { value_.store(value, std::memory_order_release); }

  /// Adds 1 and wakes all waiting threads.
  void advance() {
    value_.fetch_add(1);
    wake();
  }

  /// Subtracts 1 and wakes all waiting threads at 0. The caller must not access the event afterwards if the waiting
  /// thread may destroy it.
  void count_down() {
    if (value_.fetch_sub(1) == 1) wake();
  }

  void wait_for_change(uint32_t seen);
  void wait_for_zero();

  /// Sleeps, without spinning, for at most `nanoseconds`, perhaps for less; true when the value has changed.
  bool sleep_until_change(uint32_t seen, int64_t nanoseconds);

 private:
  template <typename Reached>
  void wait(const Reached& reached);
  void wake();

  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace tamis::threads
