#pragma once

#include <cstdint>

namespace tamis::threads {

/// Processor time in nanoseconds that this thread has used to wait for other threads inside parts of parallel regions.
/// Whoever waits there by spinning adds to it; ThreadChoice counts only the time that was used to compute.
inline thread_local int64_t waiting_time = 0;

}  // namespace tamis::threads
