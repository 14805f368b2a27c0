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

constexpr int64_t kPatience = 4'000'000;  // ns; most parts take less

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
/// parts that no thread has started yet, so that it never waits for a thread that has not been scheduled. This is safe
/// even when workers wait for each other: a waiting thread occupies one part, and there are as many threads as parts.
///
/// Where the calling thread is faster alone (ThreadChoice), the others are not woken before a part needs them: at a
/// barrier, or when it waits for them in a way of its own, which thread 1 notices because the region takes long.
class Team {
 public:
  void run(void (*work)(void*), void* data, unsigned workers) {
    workers = 1 + start_threads(workers - 1);
    const bool alone = choice_.alone();
    measured_ = choice_.measures_next();
    const int64_t begin = measured_ ? read_clock(CLOCK_MONOTONIC) : 0;
    TeamRegion region(*this, workers, alone);
    work_ = work;
    data_ = data;
    region_ = &region;
    computing_time_.store(0, std::memory_order_relaxed);
    unfinished_.reset(workers - 1);
    const uint64_t number = regions_.fetch_add(1) + 1;
    for (unsigned worker = 1; worker < workers; ++worker) {
      slots_[worker - 1]->open.store(true, std::memory_order_release);
    }
    if (!alone) {
      watched_.store(false);
      wake(workers);
    } else if (!watched_.exchange(true)) {
      slots_[0]->starts.advance();
    }
    run_part(0);
    // The part of worker 1 last: while any is open, thread 1 can see it.
    for (unsigned worker = workers - 1; worker > 0; --worker) {
      if (take(*slots_[worker - 1])) finish_part(worker);
    }
    unfinished_.wait_for_zero();
    if (!measured_) return;
    const int64_t end = read_clock(CLOCK_MONOTONIC);
    const bool waited = late_region_.load(std::memory_order_relaxed) == number;  // so the time was not for computing
    choice_.measured(end, end - begin, waited ? 0 : computing_time_.load(std::memory_order_relaxed));
  }

 private:
  struct Slot {
    Event starts;                   // advanced for every region with this worker
    std::atomic<bool> open{false};  // no thread has started this worker's part yet
  };

  class TeamRegion : public Region {
   public:
    TeamRegion(Team& team, unsigned workers, bool alone) : Region(workers), team_(team), alone_(alone) {}
    void need_workers() override {
      if (alone_.load(std::memory_order_relaxed) && alone_.exchange(false)) team_.wake(workers());
    }

   private:
    Team& team_;
    std::atomic<bool> alone_;
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

  void wake(unsigned workers) {
    for (unsigned worker = 1; worker < workers; ++worker) slots_[worker - 1]->starts.advance();
  }

  [[noreturn]] void serve(unsigned worker, Slot& slot) {
    pthread_setname_np(pthread_self(), "tamis-team");
    for (uint32_t seen = 0;;) {
      if (worker == 1 && watched_.load()) {
        watch(slot, seen);
      } else {
        slot.starts.wait_for_change(seen);
      }
      seen = slot.starts.value();  // read before `open`, so that a start between the two reads is not missed
      if (!take(slot)) continue;
      region_->need_workers();
      finish_part(worker);
    }
  }

  /// Returns when the slot's event changes, when its part has been open for kPatience, or when no region has begun for
  /// as long.
  void watch(Slot& slot, uint32_t seen) {
    for (uint64_t region = regions_.load(); !slot.starts.sleep_until_change(seen, kPatience);) {
      if (const uint64_t last = std::exchange(region, regions_.load()); last != region) continue;
      if (slot.open.load()) {
        late_region_.store(region, std::memory_order_relaxed);
        return;
      }
      watched_.store(false);
      if (regions_.load() == region) return;
      watched_.store(true);  // a region has begun meanwhile, perhaps before it could see that nobody watches
    }
  }

  static bool take(Slot& slot) { return slot.open.exchange(false, std::memory_order_acq_rel); }

  /// The region cannot end while a slot is open or its part is running.
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
  bool measured_ = false;                   // this region is
  std::atomic<int64_t> computing_time_{0};  // of its parts that have ended
  std::atomic<uint64_t> regions_{0};        // that have begun
  std::atomic<uint64_t> late_region_{0};    // the last one in which a part waited for a thread that slept
  std::atomic<bool> watched_{false};        // thread 1 does not sleep for longer than kPatience
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
