#include "tamis/base/cores.h"

#include <sched.h>

#include <algorithm>
#include <thread>

namespace tamis {

int64_t usable_cores() {
  cpu_set_t set;
  // Fails where the machine has more cores than the set has places.
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

}  // namespace tamis
