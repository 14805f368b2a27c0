#include "tamis/threads/event.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>

#include "tamis/threads/clock.h"
#include "tamis/threads/waiting.h"

namespace tamis::threads {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;

constexpr int64_t kLongestSpin = 500 * kMicrosecond;  // longer than the serial code between a small model's regions
constexpr int64_t kLostCore = kMillisecond;  // a longer gap between clock reads means that the thread was preempted
constexpr int64_t kBackoffFactor = 16;       // bounds the time lost to useless spinning to 1/16 of a thread's time
constexpr int64_t kLongestReads = 10 * kMicrosecond;  // of kReadsPerClock, on a core of one's own
constexpr int kReadsPerClock = 20;                    // this many reads take about as long as one clock read

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// This thread does not spin before this time.
thread_local int64_t no_spin_before = 0;

void back_off(int64_t wasted, int64_t time) {
  no_spin_before = time + kBackoffFactor * wasted;
}

/// Spins until `reached`; returns false when the time limit is exceeded, the thread was preempted, or it is backing
/// off.
template <typename Reached>
bool spin(const Reached& reached) {
  const auto read = [&] {
    for (int i = 0; i < kReadsPerClock; ++i) {
      if (reached()) return true;
      pause();
    }
    return false;
  };
  if (read()) return true;
  const int64_t first = read_clock(CLOCK_MONOTONIC);
  if (first < no_spin_before) return false;
  for (int64_t before = first, after = first; before - first < kLongestSpin; before = after) {
    const bool done = read();
    after = read_clock(CLOCK_MONOTONIC);
    waiting_time += std::min(after - before, kLongestReads);
    if (after - before > kLostCore) back_off(after - before, after);
    if (done) return true;
    if (after - before > kLostCore) return false;
  }
  back_off(kLongestSpin, first + kLongestSpin);
  return false;
}

}  // namespace

template <typename Reached>
void Event::wait(const Reached& reached) {
  if (spin([&] { return reached(value()); })) return;
  // Counted before the value is read again: either wake() sees the count, or FUTEX_WAIT sees that the value has
  // changed.
  sleepers_.fetch_add(1);
  for (uint32_t seen = value_.load(); !reached(seen); seen = value_.load()) {
    syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }
  sleepers_.fetch_sub(1);
}

bool Event::sleep_until_change(uint32_t seen, int64_t nanoseconds) {
  const timespec timeout{.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
  sleepers_.fetch_add(1);
  if (value_.load() == seen) syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, &timeout, nullptr, 0);
  sleepers_.fetch_sub(1);
  return value_.load() != seen;
}

void Event::wake() {
  constexpr int kAll = 1 << 30;
  if (sleepers_.load() > 0) syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, kAll, nullptr, nullptr, 0);
}

void Event::wait_for_change(uint32_t seen) {
  wait([seen](uint32_t value) { return value != seen; });
}

void Event::wait_for_zero() {
  wait([](uint32_t value) { return value == 0; });
}

}  // namespace tamis::threads
