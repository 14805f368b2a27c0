#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <exception>

#include "tamis/ops/parallel.h"
#include "tamis/threads/clock.h"
#include "tamis/threads/waiting.h"

namespace tamis::ops {

/// Work in phases of a few microseconds on ATen's threads, where each phase reads what all of the phase before wrote.
///
///   parallel_team(team_slices(items), [&](TeamWorker& worker) {
///     worker.phase(first_item, work);   // work(item) once for every item, on some thread
///     worker.phase(...);                // begins when all items of the phase before are done
///   });
///
/// The items of a phase are divided into slices, one for each worker, so that a thread accesses memory in order; a
/// worker that has finished its slice takes items of the others. On a busy machine a thread that loses its core delays
/// one item only. All workers must run the same phases.
class TeamWork {
 public:
  static constexpr int64_t kMostSlices = 64;

  explicit TeamWork(int64_t slices) : slices_(slices) {}
  int64_t slices() const { return slices_; }

  /// The next of `count` items of a slice in a phase, counted from 0; -1 if none is left.
  int64_t take(int64_t slice, uint64_t phase, int64_t count) {
    std::atomic<uint64_t>& next = taken_[slice].phase_and_items;
    uint64_t before = next.load(std::memory_order_relaxed);
    while (true) {
      const uint64_t at = before >> 32;
      const auto item = at == phase ? static_cast<int64_t>(before & 0xffffffffu) : 0;
      if (at > phase || item >= count) return -1;
      const uint64_t after = phase << 32 | static_cast<uint64_t>(item + 1);
      if (next.compare_exchange_weak(before, after, std::memory_order_relaxed)) return item;
    }
  }

  /// Marks the team as failed, so that no worker waits for the remaining items. True in the first call.
  bool fail() {
    const bool first = !failed_.exchange(true, std::memory_order_acq_rel);
    if (first) publish(kAllItems);
    return first;
  }

  /// Counts `items` as done and publishes what this thread wrote to the workers that wait.
  void publish(int64_t items) {
    done_.fetch_add(static_cast<int32_t>(items), std::memory_order_acq_rel);
    done_.notify_all();
  }

  /// Waits until `items` items are done, counted from the beginning.
  void wait(int64_t items) const {
    if (done_.load(std::memory_order_acquire) >= items) return;
    const int64_t begin = threads::read_clock(CLOCK_MONOTONIC);
    const bool reached = spin(items);
    threads::waiting_time += std::min(threads::read_clock(CLOCK_MONOTONIC) - begin, kLongestSpin);
    if (reached) return;
    for (int64_t done = done_.load(); done < items; done = done_.load())
      done_.wait(done);  // a thread has lost its core
  }

 private:
  static void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }

  bool spin(int64_t items) const {
    constexpr int kMostSpins = 4000;
    for (int spins = 0; spins < kMostSpins; ++spins) {
      pause();
      if (done_.load(std::memory_order_acquire) >= items) return true;
    }
    return false;
  }

  struct alignas(64) Taken {
    std::atomic<uint64_t> phase_and_items{0};
  };

  static constexpr int32_t kAllItems = 1 << 30;     // more than the items of all phases
  static constexpr int64_t kLongestSpin = 200'000;  // ns; in a longer time this thread has lost its core, too

  int64_t slices_;
  alignas(64) std::atomic<int32_t> done_{0};  // of this type a futex holds the value itself
  std::atomic<bool> failed_{false};
  std::array<Taken, kMostSlices> taken_;
};

/// One worker of the team.
class TeamWorker {
 public:
  TeamWorker(TeamWork& team, int64_t slice) : team_(team), slice_(slice) {}

  int64_t slice() const { return slice_; }

  /// Runs a phase: slice s has the items [first_item(s), first_item(s + 1)).
  template <typename FirstItem, typename Work>
  void phase(const FirstItem& first_item, const Work& work) {
    ++phase_;
    for (int64_t i = 0; i < team_.slices(); ++i) {
      const int64_t slice = (slice_ + i) % team_.slices();
      const int64_t first = first_item(slice), count = first_item(slice + 1) - first;
      int64_t done = 0;
      for (int64_t item = team_.take(slice, phase_, count); item >= 0; item = team_.take(slice, phase_, count)) {
        work(first + item);
        ++done;
      }
      if (done > 0) team_.publish(done);
    }
    items_ += first_item(team_.slices());
    team_.wait(items_);
  }

  /// The same, with prepare() before the first item of each worker; a worker without items does not call it.
  template <typename FirstItem, typename Prepare, typename Work>
  void phase(const FirstItem& first_item, const Prepare& prepare, const Work& work) {
    bool prepared = false;
    phase(first_item, [&](int64_t item) {
      if (!prepared) prepare();
      prepared = true;
      work(item);
    });
  }

 private:
  TeamWork& team_;
  int64_t slice_;
  uint64_t phase_ = 0;
  int64_t items_ = 0;  // of all phases so far
};

/// Calls `work(worker)` on `slices` of ATen's threads, at most TeamWork::kMostSlices. The first exception of a worker
/// (memory may be short) is rethrown when the others have ended their phases. Subnormal numbers count as zeros.
template <typename Work>
void parallel_team(int64_t slices, const Work& work) {
  TeamWork team(slices);
  std::exception_ptr failure;
  const auto join = [&](int64_t first, int64_t) {
    order::acquire(&order::fork);
    TeamWorker worker(team, first);
    const FlushedSubnormals flushed;
    try {
      work(worker);
    } catch (...) {
      if (team.fail()) failure = std::current_exception();
    }
    order::release(&team);
  };
  order::release(&order::fork);
  at::parallel_for(0, slices, 1, join);
  order::acquire(&team);
  if (failure) std::rethrow_exception(failure);
}

/// Slices for phases of this many items: one for each thread, but no empty ones.
inline int64_t team_slices(int64_t items) {
  return std::clamp<int64_t>(at::get_num_threads(), 1, std::min(items, TeamWork::kMostSlices));
}

}  // namespace tamis::ops
