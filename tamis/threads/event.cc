#include "tamis/threads/event.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace tamis::threads {
namespace {

constexpr int64_t kMicrosecond = 1000, kMillisecond = 1000 * kMicrosecond;

constexpr int64_t kLongestSpin = 500 * kMicrosecond;  // the serial code between two regions of a small model is shorter
constexpr int64_t kLostCore = kMillisecond;           // between two looks at the clock: a time slice of another program
constexpr int64_t kRestPerWaste = 16;                 // so a sixteenth of a thread's time is wasted at most
constexpr int kReadsPerClock = 20;                    // take about as long as a look at the clock

int64_t now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// Until when this thread does without spinning.
thread_local int64_t rests_until = 0;

void rest_for(int64_t wasted, int64_t time) {
  rests_until = time + kRestPerWaste * wasted;
}

/// Reads until the number is reached, for as long as spinning is worth it; false when it is not.
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
  const int64_t first = now();
  if (first < rests_until) return false;
  for (int64_t before = first, after = first; before - first < kLongestSpin; before = after) {
    const bool done = read();
    after = now();
    if (after - before > kLostCore) rest_for(after - before, after);
    if (done) return true;
    if (after - before > kLostCore) return false;
  }
  rest_for(kLongestSpin, first + kLongestSpin);
  return false;
}

}  // namespace

template <typename Reached>
void Event::wait(const Reached& reached) {
  if (spin([&] { return reached(value()); })) return;
  // Announced before the last look: either wake() sees the sleeper, or the kernel sees that the number has changed.
  sleepers_.fetch_add(1);
  for (uint32_t seen = value_.load(); !reached(seen); seen = value_.load()) {
    syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
  }
  sleepers_.fetch_sub(1);
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
