#pragma once

#include "tamis/threads/region.h"

namespace tamis::threads {

/// The position of the calling thread: the parallel region, its worker in it, and its loop.
struct Place {
  Region* region = nullptr;  // nullptr outside of regions and in a nested region, which has one worker
  unsigned worker = 0;
  bool parallel = false;  // inside a region that a team runs, or one nested in it
  uint64_t loops = 0;     // number of loops that the worker has entered in this region
  Loop* loop = nullptr;   // the current loop
  int64_t chunk = -1;     // index of the current chunk of that loop

  static Place& mine();
};

/// Runs a parallel region: calls `work(data)` once for each of `workers` (at least 2) workers, on this thread and those
/// of a team, and returns when all calls have returned. There are fewer workers when the system refuses more threads.
void run_in_parallel(void (*work)(void*), void* data, unsigned workers);

/// Calls `work(data)` inside a parallel region, as a nested region with one worker.
void run_nested(void (*work)(void*), void* data);

}  // namespace tamis::threads
