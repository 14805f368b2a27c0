#include "tamis/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace tamis {

int64_t usable_cores() {
  cpu_set_t set;
  // Fails on machines with more cores than cpu_set_t has bits.
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

}  // namespace tamis
