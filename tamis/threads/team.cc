#include "tamis/threads/team.h"

#include <pthread.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

namespace tamis::threads {
namespace {

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
class Team {
 public:
  void run(void (*work)(void*), void* data, unsigned workers) {
    workers = 1 + start_threads(workers - 1);
    Region region(workers);
    work_ = work;
    data_ = data;
    region_ = &region;
    unfinished_.reset(workers - 1);
    for (unsigned worker = 1; worker < workers; ++worker) {
      Slot& slot = *slots_[worker - 1];
      slot.open.store(true, std::memory_order_release);
      slot.starts.advance();
    }
    run_as({.region = &region, .worker = 0, .parallel = true}, work, data);
    for (unsigned worker = 1; worker < workers; ++worker) work_if_open(worker, *slots_[worker - 1]);
    unfinished_.wait_for_zero();
  }

 private:
  struct Slot {
    Event starts;                   // advanced for every region with this worker
    std::atomic<bool> open{false};  // no thread has started this worker's part yet
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

  [[noreturn]] void serve(unsigned worker, Slot& slot) {
    pthread_setname_np(pthread_self(), "tamis-team");
    for (uint32_t seen = 0;;) {
      slot.starts.wait_for_change(seen);
      seen = slot.starts.value();  // read before `open`, so that a start between the two reads is not missed
      work_if_open(worker, slot);
    }
  }

  /// The region cannot end while the slot is open or its part is running.
  void work_if_open(unsigned worker, Slot& slot) {
    if (!slot.open.exchange(false, std::memory_order_acq_rel)) return;
    run_as({.region = region_, .worker = worker, .parallel = true}, work_, data_);
    unfinished_.count_down();
  }

  std::vector<std::unique_ptr<Slot>> slots_;  // of workers 1, 2, ...
  void (*work_)(void*) = nullptr;
  void* data_ = nullptr;
  Region* region_ = nullptr;
  Event unfinished_;  // number of unfinished parts of workers 1, 2, ...; not in Region, which is destroyed at 0
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
