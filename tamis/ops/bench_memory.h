#pragma once

// What micro-benchmarks of matrix products share. Included by benchmarks only.

#include <malloc.h>

namespace tamis::ops {

/// Keeps released memory, as the programs of this project do: bare products write to memory that is there, and a steady
/// training step asks the kernel for none either.
inline void keep_memory() {
  [[maybe_unused]] static const int kept = mallopt(M_MMAP_MAX, 0) + mallopt(M_TRIM_THRESHOLD, -1);
}

}  // namespace tamis::ops
