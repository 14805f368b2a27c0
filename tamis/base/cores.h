#pragma once

#include <cstdint>
#include <string>

namespace tamis {

/// Number of cores that this process may run on: those in its CPU affinity mask, which taskset or a container may
/// have restricted.
int64_t usable_cores();

/// The machine and the cores of usable_cores(), such as "node3 0 1 2": equal for processes that compete for cores.
std::string core_set();

}  // namespace tamis
