#include "tamis/base/cores.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

namespace tamis {

int64_t usable_cores() {
  cpu_set_t set;
  // Fails on machines with more cores than cpu_set_t has bits.
  if (sched_getaffinity(0, sizeof(set), &set) == 0) return CPU_COUNT(&set);
  return std::max<int64_t>(1, std::thread::hardware_concurrency());
}

std::string core_set() {
  char host[256] = "";
  gethostname(host, sizeof(host) - 1);
  std::string result = host;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return result;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) result += " " + std::to_string(core);
  }
  return result;
}

}  // namespace tamis
