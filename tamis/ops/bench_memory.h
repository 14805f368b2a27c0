#pragma once

// Shared by the benchmarks of matrix products. Included by benchmarks only.

#include <malloc.h>

namespace tamis::ops {

/// Keeps freed memory in the process, as the programs of this project do, so that products write to mapped memory as in
/// a training step.
inline void keep_memory() {
  [[maybe_unused]] static const int kept = mallopt(M_MMAP_MAX, 0) + mallopt(M_TRIM_THRESHOLD, -1);
}

}  // namespace tamis::ops
