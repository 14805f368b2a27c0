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

/// Threads that wait for work until the process ends.
///
/// A region's workers are numbers, not threads: a thread takes a number that is still open and does that worker's part,
/// its own number first. Who opened the region takes what is left, so that nobody waits for a thread that has no core.
/// That is safe even where workers wait for each other, by whatever means: a thread that waits has one number, and
/// there are as many threads as numbers.
class Team {
 public:
  void run(void (*work)(void*), void* data, unsigned workers) {
    workers = 1 + hire(workers - 1);
    Region region(workers);
    work_ = work;
    data_ = data;
    region_ = &region;
    unfinished_.reset(workers - 1);
    for (unsigned worker = 1; worker < workers; ++worker) {
      Seat& seat = *seats_[worker - 1];
      seat.open.store(true, std::memory_order_release);
      seat.starts.advance();
    }
    run_as({.region = &region, .worker = 0, .parallel = true}, work, data);
    for (unsigned worker = 1; worker < workers; ++worker) work_if_open(worker, *seats_[worker - 1]);
    unfinished_.wait_for_zero();
  }

 private:
  struct Seat {
    Event starts;                   // advanced for every region with this worker
    std::atomic<bool> open{false};  // nobody does its part yet
  };

  /// Sees to it that there are so many threads, and returns how many of them there are.
  unsigned hire(unsigned threads) {
    while (seats_.size() < threads) {
      seats_.push_back(std::make_unique<Seat>());
      try {
        std::thread([this, worker = seats_.size(), seat = seats_.back().get()] {
          serve(static_cast<unsigned>(worker), *seat);
        }).detach();
      } catch (const std::system_error&) {  // no more threads: fewer do the same work
        seats_.pop_back();
        break;
      }
    }
    return std::min(threads, static_cast<unsigned>(seats_.size()));
  }

  [[noreturn]] void serve(unsigned worker, Seat& seat) {
    pthread_setname_np(pthread_self(), "tamis-team");
    for (uint32_t seen = 0;;) {
      seat.starts.wait_for_change(seen);
      seen = seat.starts.value();  // before the look at `open`: a start that comes now is seen next time
      work_if_open(worker, seat);
    }
  }

  /// The region cannot end while a number is open or its part is being done.
  void work_if_open(unsigned worker, Seat& seat) {
    if (!seat.open.exchange(false, std::memory_order_acq_rel)) return;
    run_as({.region = region_, .worker = worker, .parallel = true}, work_, data_);
    unfinished_.count_down();
  }

  std::vector<std::unique_ptr<Seat>> seats_;  // of the workers from 1
  void (*work_)(void*) = nullptr;
  void* data_ = nullptr;
  Region* region_ = nullptr;
  Event unfinished_;  // workers from 1 whose parts are not done: not in the region, which ends at 0
};

/// Every thread that opens a region at this moment has a team of its own; a team that is not used waits here.
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

/// They are there until the process ends. A forked child has no thread of any team, so it begins with none.
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
