#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "tamis/threads/event.h"

namespace tamis::threads {

/// Iterations first, first + step, ... before end, handed out in chunks.
struct LoopBounds {
  long first, end, step, chunk;  // NOLINT(google-runtime-int): OpenMP's type
};

/// A loop whose chunks are taken by whichever worker is free. OpenMP's sections and `single` are loops too.
struct Loop {
  uint64_t number;  // of the loops of the region, in the order in which every worker meets them
  LoopBounds left;
  unsigned workers_left;  // who have not finished with it
  int64_t taken = 0;      // chunks
  int64_t turn = 0;       // of an ordered loop: the chunk whose ordered part may run
};

/// One parallel region: what its workers share.
class Region {
 public:
  explicit Region(unsigned workers) : workers_(workers) {}
  unsigned workers() const { return workers_; }

  /// Returns when all workers have called it.
  void barrier();

  /// The loop with this number; made by the first worker that comes.
  Loop* enter(uint64_t number, const LoopBounds& bounds);

  /// The next chunk of iterations and its index; -1 when none is left.
  int64_t take(Loop* loop, long* first, long* end);  // NOLINT(google-runtime-int)

  /// The worker is done with the loop: the last one deletes it.
  void leave(Loop* loop);

  void wait_for_turn(Loop* loop, int64_t chunk);
  void end_turn(Loop* loop, int64_t chunk);

 private:
  const unsigned workers_;
  std::atomic<unsigned> arrived_{0};
  Event barriers_;  // how many were passed
  std::mutex mutex_;
  std::condition_variable turn_;
  std::vector<std::unique_ptr<Loop>> loops_;
};

}  // namespace tamis::threads
