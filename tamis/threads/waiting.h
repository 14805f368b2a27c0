#pragma once

#include <cstdint>

namespace tamis::threads {

/// Time in nanoseconds that this thread has spun while it waited for other threads: an estimate of the processor time
/// that this took. What spins inside parts of parallel regions adds to it; ThreadChoice leaves it out.
inline thread_local int64_t waiting_time = 0;

}  // namespace tamis::threads
