#include "tamis/base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include "tamis/base/error.h"
#include "tamis/base/terminal.h"

namespace tamis {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// Pages of address space (0) or of resident memory (1), in bytes.
int64_t statm(int column) {
  std::ifstream file("/proc/self/statm");
  int64_t pages[2] = {};
  file >> pages[0] >> pages[1];
  return pages[column] * sysconf(_SC_PAGE_SIZE);
}

int64_t available_in_system() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  int64_t kilobytes = 0;
  while (file >> name >> kilobytes) {
    if (name == "MemAvailable:") return kilobytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return kUnlimited;
}

/// The number in a file of the control group, else `otherwise` ("max" means that there is no limit).
int64_t read_number(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : otherwise;
}

int64_t available_in_control_group() {
  std::ifstream file("/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("0::")) continue;
    const std::string group = "/sys/fs/cgroup" + line.substr(3);
    const int64_t limit = read_number(group + "/memory.max", kUnlimited);
    if (limit != kUnlimited) return std::max<int64_t>(0, limit - read_number(group + "/memory.current", 0));
  }
  return kUnlimited;
}

int64_t available_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - statm(0));
}

}  // namespace

int64_t resident_bytes() {
  return statm(1);
}

int64_t available_memory_bytes() {
  return std::min({available_in_system(), available_in_control_group(), available_address_space()});
}

void require_memory(double bytes, std::string_view what, std::string_view advice) {
  const auto available = static_cast<double>(available_memory_bytes());
  if (bytes <= available) return;
  fail(ExitCode::kRuntime, "{} needs {} of memory, but {} are available; {}", what, format_bytes(bytes),
       format_bytes(available), advice);
}

}  // namespace tamis
