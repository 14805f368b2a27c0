#include "tamis/threads/team.h"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "tamis/threads/clock.h"
#include "tamis/threads/thread_choice.h"
#include "tamis/threads/waiting.h"

namespace tamis::threads {
namespace {

constexpr int64_t kLateAfter = 4'000'000;  // ns; most parts take less
constexpr int kMostPolls = 25;             // of a region, after kLateAfter each, until its part 1 is late in any case

int64_t computing_time() {
  return read_clock(CLOCK_THREAD_CPUTIME_ID) - waiting_time;
}

void run_as(const Place& place, void (*work)(void*), void* data) {
  const Place before = std::exchange(Place::mine(), place);
  work(data);
  Place::mine() = before;
}

/// A set of threads that run parallel regions until the process ends.
///
/// Thread n runs the part of worker n. When the calling thread has finished the part of worker 0, it also runs the
/// parts that no thread has started yet, so that it does not wait for a thread that has not been scheduled. This is
/// safe even when workers wait for each other: a waiting thread occupies one part, and there are as many threads as
/// parts.
///
/// Where the calling thread is fast enough alone (ThreadChoice, one for regions of all sizes), the others sleep on
/// until a part needs them: until it reaches a barrier or, because parts may also wait in ways of their own, until
/// thread 1 sees that the calling thread has computed for kLateAfter, or slept for longer, while part 1 had not begun.
class Team {
 public:
  void run(void (*work)(void*), void* data, unsigned workers) {
    workers = 1 + start_threads(workers - 1);
    const bool alone = workers > 1 && choice_.alone();
    measured_ = workers > 1 && choice_.begin_region();
    const int64_t begin = measured_ ? read_clock(CLOCK_MONOTONIC) : 0;
    TeamRegion region(*this, workers);
    work_ = work;
    data_ = data;
    region_ = &region;
    computing_time_.store(0, std::memory_order_relaxed);
    unfinished_.reset(workers - 1);
    if (alone) caller_clock_.store(clock_of_this_thread(), std::memory_order_relaxed);
    const uint64_t region_number = regions_.fetch_add(1) + 1;
    for (unsigned worker = 1; worker < workers; ++worker) {
      slots_[worker - 1]->part.store(alone ? Part::kForCaller : Part::kForAll);
    }
    if (!alone) {
      watched_.store(false);
      for (unsigned worker = 1; worker < workers; ++worker) slots_[worker - 1]->starts.advance();
    } else if (!watched_.exchange(true)) {
      slots_[0]->starts.advance();
    }
    run_part(0);
    // Part 1 last: thread 1 watches only its own slot, which must be open while any other is.
    for (unsigned worker = workers - 1; worker > 0; --worker) {
      if (slots_[worker - 1]->part.exchange(Part::kTaken) != Part::kTaken) finish_part(worker);
    }
    unfinished_.wait_for_zero();
    if (!measured_) return;
    const int64_t end = read_clock(CLOCK_MONOTONIC);
    int64_t computing = computing_time_.load(std::memory_order_relaxed);
    if (late_region_ == region_number) computing -= late_at_ - begin;  // perhaps spent waiting for another part
    choice_.measured(end, end - begin, std::max<int64_t>(computing, 0));
  }

 private:
  enum class Part { kTaken, kForCaller, kForAll };  // kForCaller: only the calling thread may take it

  struct Slot {
    Event starts;  // advanced when its thread may take its part, or has to watch
    std::atomic<Part> part{Part::kTaken};
  };

  class TeamRegion : public Region {
   public:
    TeamRegion(Team& team, unsigned workers) : Region(workers), team_(team) {}
    void need_workers() override { team_.open_parts(workers()); }

   private:
    Team& team_;
  };

  /// Starts threads until there are `threads`; returns how many of these exist, which is less when the system refuses.
  unsigned start_threads(unsigned threads) {
    while (slots_.size() < threads) {
      slots_.push_back(std::make_unique<Slot>());
      try {
        std::thread([this, worker = slots_.size(), slot = slots_.back().get()] {
          serve(static_cast<unsigned>(worker), *slot);
        }).detach();
      } catch (const std::system_error&) {
        slots_.pop_back();
        break;
      }
    }
    return std::min(threads, static_cast<unsigned>(slots_.size()));
  }

  static clockid_t clock_of_this_thread() {
    clockid_t clock = CLOCK_MONOTONIC;
    pthread_getcpuclockid(pthread_self(), &clock);
    return clock;
  }

  static bool change(Slot& slot, Part from, Part to) { return slot.part.compare_exchange_strong(from, to); }

  /// Lets all threads take the parts that are for the calling thread alone. Called inside an unfinished part, so that
  /// the region and the number of slots last.
  void open_parts(unsigned workers) {
    for (unsigned worker = 1; worker < workers; ++worker) {
      Slot& slot = *slots_[worker - 1];
      if (change(slot, Part::kForCaller, Part::kForAll)) slot.starts.advance();
    }
  }

  [[noreturn]] void serve(unsigned worker, Slot& slot) {
    pthread_setname_np(pthread_self(), "tamis-team");
    for (uint32_t seen = 0;;) {
      if (worker == 1 && watched_.load()) {
        if (takes_late_part(slot, seen)) {
          region_->need_workers();
          finish_part(worker);
        }
      } else {
        slot.starts.wait_for_change(seen);
      }
      seen = slot.starts.value();  // read before the part, so that a start between the two reads is not missed
      if (change(slot, Part::kForAll, Part::kTaken)) finish_part(worker);
    }
  }

  /// Watches lone regions. True when the part of this thread was late, and is now its own; false when the slot's event
  /// has changed, or when no region has begun for kLateAfter.
  bool takes_late_part(Slot& slot, uint32_t seen) {
    uint64_t region = regions_.load();
    int64_t used = caller_time();
    for (int polls = 0; !slot.starts.sleep_until_change(seen, kLateAfter);) {
      const uint64_t last_region = std::exchange(region, regions_.load());
      const int64_t last_used = std::exchange(used, caller_time());
      polls = last_region == region ? polls + 1 : 0;
      if (polls == 0) continue;
      if (slot.part.load() == Part::kForCaller) {
        const bool has_lost_its_core = used - last_used < kLateAfter / 2;  // or it sleeps until another part is done
        if (has_lost_its_core && polls < kMostPolls) continue;
        if (!change(slot, Part::kForCaller, Part::kTaken)) continue;
        late_region_ = region;
        late_at_ = read_clock(CLOCK_MONOTONIC);
        return true;
      }
      watched_.store(false);
      // A region may have begun meanwhile, before it could see that this thread does not watch.
      if (regions_.load() == region && slot.part.load() != Part::kForCaller) return false;
      watched_.store(true);
    }
    return false;
  }

  /// Processor time of the thread that computes alone.
  int64_t caller_time() const { return read_clock(caller_clock_.load(std::memory_order_relaxed)); }

  /// The region cannot end while a part is not taken or not finished.
  void finish_part(unsigned worker) {
    run_part(worker);
    unfinished_.count_down();
  }

  void run_part(unsigned worker) {
    const int64_t begin = measured_ ? computing_time() : 0;
    run_as({.region = region_, .worker = worker, .parallel = true}, work_, data_);
    if (measured_) computing_time_.fetch_add(computing_time() - begin, std::memory_order_relaxed);
  }

  std::vector<std::unique_ptr<Slot>> slots_;  // of workers 1, 2, ...
  void (*work_)(void*) = nullptr;
  void* data_ = nullptr;
  Region* region_ = nullptr;
  Event unfinished_;  // number of unfinished parts of workers 1, 2, ...; not in Region, which is destroyed at 0
  ThreadChoice choice_;
  bool measured_ = false;                                 // this region is
  std::atomic<int64_t> computing_time_{0};                // of its parts that have ended
  std::atomic<uint64_t> regions_{0};                      // that have begun
  std::atomic<bool> watched_{false};                      // thread 1 does not sleep for longer than kLateAfter
  std::atomic<clockid_t> caller_clock_{CLOCK_MONOTONIC};  // processor time of the thread that computes alone
  uint64_t late_region_ = 0;                              // the last one whose part 1 was late
  int64_t late_at_ = 0;                                   // when thread 1 took that part
};

/// A pool of teams: threads that open regions concurrently each use a team of their own.
class Teams {
 public:
  std::unique_ptr<Team> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Team>();
    std::unique_ptr<Team> team = std::move(idle_.back());
    idle_.pop_back();
    return team;
  }

  void put_back(std::unique_ptr<Team> team) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(team));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Team>> idle_;
};

/// Never destroyed. A forked child has none of the threads, so it starts with an empty pool.
Teams& teams() {
  static Teams* current = [] {
    pthread_atfork(nullptr, nullptr, [] { current = new Teams; });
    return new Teams;
  }();
  return *current;
}

}  // namespace

Place& Place::mine() {
  thread_local Place place;
  return place;
}

void run_in_parallel(void (*work)(void*), void* data, unsigned workers) {
  std::unique_ptr<Team> team = teams().take();
  team->run(work, data, workers);
  teams().put_back(std::move(team));
}

void run_nested(void (*work)(void*), void* data) {
  run_as({.parallel = true}, work, data);
}

}  // namespace tamis::threads
