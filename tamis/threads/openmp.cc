// Replaces the entry points of libgomp that GCC-compiled code calls, so that the parallel regions of LibTorch, MKL,
// oneDNN and Tamis run on the threads of tamis/threads/team.h. This works because symbols of the program take
// precedence over those of shared libraries. Calls from outside such a region are forwarded to libgomp.

#include "tamis/threads/openmp_library.h"
#include "tamis/threads/team.h"

namespace {

using tamis::threads::openmp_function;
using tamis::threads::Place;
using tamis::threads::Region;

/// libgomp's own function of this name.
template <typename Function>
Function* original(const char* name) {
  return reinterpret_cast<Function*>(openmp_function(name));
}

bool take_chunk(long* first, long* end) {  // NOLINT(google-runtime-int): OpenMP's type, here and below
  Place& place = Place::mine();
  place.chunk = place.region->take(place.loop, first, end);
  return place.chunk >= 0;
}

void enter_loop(const tamis::threads::LoopBounds& bounds) {
  Place& place = Place::mine();
  place.loop = place.region->enter(place.loops++, bounds);
}

void leave_loop() {
  Place& place = Place::mine();
  place.region->leave(place.loop);
  place.loop = nullptr;
}

void end_turn() {
  const Place& place = Place::mine();
  if (place.chunk >= 0) place.region->end_turn(place.loop, place.chunk);
}

}  // namespace

extern "C" {

int omp_get_thread_num() {
  const Place& place = Place::mine();
  if (place.parallel) return static_cast<int>(place.worker);
  static const auto library = original<int()>("omp_get_thread_num");
  return library();
}

int omp_get_num_threads() {
  const Place& place = Place::mine();
  if (place.parallel) return place.region == nullptr ? 1 : static_cast<int>(place.region->workers());
  static const auto library = original<int()>("omp_get_num_threads");
  return library();
}

int omp_in_parallel() {
  if (Place::mine().parallel) return 1;
  static const auto library = original<int()>("omp_in_parallel");
  return library();
}

void GOMP_parallel(void (*work)(void*), void* data, unsigned workers, unsigned flags) {
  if (Place::mine().parallel) return tamis::threads::run_nested(work, data);
  static const auto library = original<void(void (*)(void*), void*, unsigned, unsigned)>("GOMP_parallel");
  static const auto library_workers = original<int()>("omp_get_max_threads");
  static const auto library_in_parallel = original<int()>("omp_in_parallel");
  if (tamis::threads::team_serves_openmp() && library_in_parallel() == 0) {
    if (workers == 0) workers = static_cast<unsigned>(library_workers());
    if (workers > 1) return tamis::threads::run_in_parallel(work, data, workers);
  }
  library(work, data, workers, flags);
}

void GOMP_barrier() {
  const Place& place = Place::mine();
  if (place.region != nullptr) return place.region->barrier();
  static const auto library = original<void()>("GOMP_barrier");
  library();
}

bool GOMP_single_start() {
  if (Place::mine().region == nullptr) {
    static const auto library = original<bool()>("GOMP_single_start");
    return library();
  }
  long first = 0, end = 0;  // NOLINT(google-runtime-int)
  enter_loop({.first = 0, .end = 1, .step = 1, .chunk = 1});
  const bool mine = take_chunk(&first, &end);
  leave_loop();
  return mine;
}

unsigned GOMP_sections_next() {
  if (Place::mine().region == nullptr) {
    static const auto library = original<unsigned()>("GOMP_sections_next");
    return library();
  }
  long section = 0, end = 0;  // NOLINT(google-runtime-int)
  return take_chunk(&section, &end) ? static_cast<unsigned>(section) : 0;
}

unsigned GOMP_sections_start(unsigned count) {
  if (Place::mine().region == nullptr) {
    static const auto library = original<unsigned(unsigned)>("GOMP_sections_start");
    return library(count);
  }
  enter_loop({.first = 1, .end = static_cast<long>(count) + 1, .step = 1, .chunk = 1});  // NOLINT(google-runtime-int)
  return GOMP_sections_next();
}

void GOMP_loop_end_nowait() {
  if (Place::mine().region != nullptr) return leave_loop();
  static const auto library = original<void()>("GOMP_loop_end_nowait");
  library();
}

void GOMP_loop_end() {
  if (Place::mine().region == nullptr) {
    static const auto library = original<void()>("GOMP_loop_end");
    return library();
  }
  leave_loop();
  Place::mine().region->barrier();
}

void GOMP_sections_end_nowait() {
  GOMP_loop_end_nowait();
}

void GOMP_sections_end() {
  GOMP_loop_end();
}

// NOLINTBEGIN(google-runtime-int)
using NextChunk = bool(long* first, long* end);
using StartLoop = bool(long first, long end, long step, long chunk, long* chunk_first, long* chunk_end);

bool GOMP_loop_dynamic_next(long* first, long* end) {
  if (Place::mine().region != nullptr) return take_chunk(first, end);
  static const auto library = original<NextChunk>("GOMP_loop_dynamic_next");
  return library(first, end);
}

bool GOMP_loop_dynamic_start(long first, long end, long step, long chunk, long* chunk_first, long* chunk_end) {
  if (Place::mine().region == nullptr) {
    static const auto library = original<StartLoop>("GOMP_loop_dynamic_start");
    return library(first, end, step, chunk, chunk_first, chunk_end);
  }
  enter_loop({first, end, step, chunk});
  return take_chunk(chunk_first, chunk_end);
}

bool GOMP_loop_nonmonotonic_dynamic_next(long* first, long* end) {
  return GOMP_loop_dynamic_next(first, end);
}

bool GOMP_loop_nonmonotonic_dynamic_start(long first, long end, long step, long chunk, long* chunk_first,
                                          long* chunk_end) {
  return GOMP_loop_dynamic_start(first, end, step, chunk, chunk_first, chunk_end);
}

bool GOMP_loop_ordered_dynamic_next(long* first, long* end) {
  if (Place::mine().region == nullptr) {
    static const auto library = original<NextChunk>("GOMP_loop_ordered_dynamic_next");
    return library(first, end);
  }
  end_turn();
  return take_chunk(first, end);
}

bool GOMP_loop_ordered_dynamic_start(long first, long end, long step, long chunk, long* chunk_first, long* chunk_end) {
  if (Place::mine().region != nullptr) return GOMP_loop_dynamic_start(first, end, step, chunk, chunk_first, chunk_end);
  static const auto library = original<StartLoop>("GOMP_loop_ordered_dynamic_start");
  return library(first, end, step, chunk, chunk_first, chunk_end);
}
// NOLINTEND(google-runtime-int)

void GOMP_ordered_start() {
  const Place& place = Place::mine();
  if (place.region != nullptr) return place.region->wait_for_turn(place.loop, place.chunk);
  static const auto library = original<void()>("GOMP_ordered_start");
  library();
}

void GOMP_ordered_end() {
  if (Place::mine().region != nullptr) return;  // the turn ends with the chunk
  static const auto library = original<void()>("GOMP_ordered_end");
  library();
}

}  // extern "C"
