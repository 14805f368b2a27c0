#pragma once

#include <cstdint>

namespace tamis {

/// Cores that this process may run on: those of the machine, or of its affinity (taskset, a container's set of
/// cores) where that has fewer.
int64_t usable_cores();

}  // namespace tamis
