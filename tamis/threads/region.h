#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tamis/threads/event.h"

namespace tamis::threads {

/// The iterations first, first + step, ... before end, distributed in chunks of `chunk` iterations.
struct LoopBounds {
  long first, end, step, chunk;  // NOLINT(google-runtime-int): OpenMP's type
};

/// A dynamically scheduled loop. OpenMP's `sections` and `single` are loops too.
struct Loop {
  uint64_t number;        // index among the loops of the region; every worker executes them in this order
  LoopBounds left;        // iterations that no worker has taken yet
  unsigned workers_left;  // workers that have not left the loop yet
  int64_t taken = 0;      // number of chunks that workers have taken
  int64_t turn = 0;       // ordered loops: index of the chunk whose ordered part may run
};

/// The shared state of the workers of one parallel region.
class Region {
 public:
  explicit Region(unsigned workers) : workers_(workers) {}
  virtual ~Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;
  unsigned workers() const { return workers_; }

  /// Called before a worker waits for others, which may not have been started.
  virtual void need_workers() {}

  /// Waits until all workers have called it.
  void barrier();

  /// The loop with this number; the first worker to call this creates it.
  Loop* enter(uint64_t number, const LoopBounds& bounds);

  /// Takes the next chunk: stores its bounds and returns its index, or -1 when no chunk is left.
  int64_t take(Loop* loop, long* first, long* end);  // NOLINT(google-runtime-int)

  /// Called by each worker when it has finished the loop; the last call deletes the loop.
  void leave(Loop* loop);

  /// Waits until the ordered parts of all chunks before `chunk` have run.
  void wait_for_turn(Loop* loop, int64_t chunk);
  /// Allows the ordered part of the chunk after `chunk` to run.
  void end_turn(Loop* loop, int64_t chunk);

 private:
  const unsigned workers_;
  std::atomic<unsigned> arrived_{0};
  Event barriers_;  // number of completed barriers
  std::mutex mutex_;
  std::condition_variable turn_;
  std::vector<std::unique_ptr<Loop>> loops_;
};

}  // namespace tamis::threads
