#pragma once

#include <cstdint>

namespace tamis {

/// Number of cores that this process may run on: those in its CPU affinity mask, which taskset or a container may
/// have restricted.
int64_t usable_cores();

}  // namespace tamis
