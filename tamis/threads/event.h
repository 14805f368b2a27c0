#pragma once

#include <atomic>
#include <cstdint>

namespace tamis::threads {

/// A number that one thread changes and others wait on.
///
/// A thread that spins, reading the number again and again, sees a change within a tenth of a microsecond; one that
/// sleeps in the kernel needs 5 to 50. But on a core that another program wants, spinning uses up the thread's time
/// slice, and the thread is off the core when there is work for it. So a thread spins for a bounded time, and each time
/// that spinning was of no use, because the time was up or another program took the core meanwhile, the thread waits
/// without spinning for a multiple of the time that was wasted.
class alignas(64) Event {
 public:
  uint32_t value() const { return value_.load(std::memory_order_acquire); }

  /// Only while no thread waits.
  void reset(uint32_t value) { value_.store(value, std::memory_order_release); }

  /// Adds 1 and wakes all who wait for a change.
  void advance() {
    value_.fetch_add(1);
    wake();
  }

  /// Subtracts 1 and wakes who waits for 0. The caller must not touch the event again if that ends its life.
  void count_down() {
    if (value_.fetch_sub(1) == 1) wake();
  }

  void wait_for_change(uint32_t seen);
  void wait_for_zero();

 private:
  template <typename Reached>
  void wait(const Reached& reached);
  void wake();

  std::atomic<uint32_t> value_{0};
  std::atomic<uint32_t> sleepers_{0};
};

}  // namespace tamis::threads
