#pragma once

#include "tamis/threads/region.h"

namespace tamis::threads {

/// Where the calling thread is: which worker of which parallel region.
struct Place {
  Region* region = nullptr;  // none outside of all, and in a nested region, which has one worker
  unsigned worker = 0;
  bool parallel = false;  // in a region of ours
  uint64_t loops = 0;     // met so far in the region
  Loop* loop = nullptr;   // that it is in
  int64_t chunk = -1;     // that it has of the loop

  static Place& mine();
};

/// Calls `work(data)` once on each of `workers` threads, this one among them, at least 2; fewer where the system has no
/// more threads to give.
void run_in_parallel(void (*work)(void*), void* data, unsigned workers);

/// Calls `work(data)` inside of a parallel region, as a region of one worker.
void run_nested(void (*work)(void*), void* data);

}  // namespace tamis::threads
