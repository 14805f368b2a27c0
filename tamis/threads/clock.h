#pragma once

#include <time.h>

#include <cstdint>

namespace tamis::threads {

/// In nanoseconds.
inline int64_t read_clock(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return int64_t{1'000'000'000} * time.tv_sec + time.tv_nsec;
}

}  // namespace tamis::threads
