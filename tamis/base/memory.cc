#include "tamis/base/memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <limits>
#include <string>

#include "tamis/base/error.h"
#include "tamis/base/terminal.h"

namespace tamis {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

/// Bytes of address space (column 0) or of resident memory (column 1) of this process.
int64_t statm(int column) {
  std::ifstream file("/proc/self/statm");
  int64_t pages[2] = {};
  file >> pages[0] >> pages[1];
  return pages[column] * sysconf(_SC_PAGE_SIZE);
}

/// The line `name` of a file such as /proc/meminfo, in bytes; `otherwise` when there is none.
int64_t read_line(const char* path, std::string_view wanted, int64_t otherwise) {
  std::ifstream file(path);
  for (std::string name; file >> name; file.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    if (int64_t kilobytes = 0; name == wanted && file >> kilobytes) return kilobytes * 1024;
  }
  return otherwise;
}

int64_t available_in_system() {
  return read_line("/proc/meminfo", "MemAvailable:", kUnlimited);
}

/// The number in a control group file; `otherwise` for "max" (no limit) or a file that cannot be read.
int64_t read_number(const std::string& path, int64_t otherwise) {
  std::ifstream file(path);
  int64_t number = 0;
  return file >> number ? number : otherwise;
}

/// Bytes counted for the group that the kernel can reclaim: the page cache and reclaimable slabs.
int64_t reclaimable(const std::string& group) {
  std::ifstream file(group + "/memory.stat");
  std::string name;
  int64_t sum = 0;
  for (int64_t bytes = 0; file >> name >> bytes;) {
    if (name == "inactive_file" || name == "active_file" || name == "slab_reclaimable") sum += bytes;
  }
  return sum;
}

/// Bytes left within the memory limit of a group (control groups version 1 or 2).
int64_t available_in_group(const std::string& group, const std::string& limit_file, const std::string& used_file) {
  const int64_t limit = read_number(group + limit_file, kUnlimited);
  if (limit == kUnlimited) return kUnlimited;
  return std::max<int64_t>(0, limit - read_number(group + used_file, 0) + reclaimable(group));
}

/// The minimum over the process's own group and all its ancestors.
int64_t available_in_control_groups() {
  std::ifstream file("/proc/self/cgroup");  // lines such as 0::/user.slice or 4:memory:/docker/x
  int64_t least = kUnlimited;
  for (std::string line; std::getline(file, line);) {
    const size_t controllers = line.find(':') + 1, path = line.find(':', controllers) + 1;
    const bool version_2 = line.starts_with("0::"), memory = line.find("memory") < path;
    if (!version_2 && !memory) continue;
    const std::string root = version_2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    for (std::string group = line.substr(path); !group.empty(); group.resize(group.rfind('/'))) {
      const std::string directory = root + (group == "/" ? "" : group);
      least = std::min(least, version_2
                                  ? available_in_group(directory, "/memory.max", "/memory.current")
                                  : available_in_group(directory, "/memory.limit_in_bytes", "/memory.usage_in_bytes"));
    }
  }
  return least;
}

std::atomic<void (*)()> memory_trim{nullptr};

}  // namespace

int64_t resident_bytes() {
  return statm(1);
}

int64_t peak_resident_bytes() {
  return read_line("/proc/self/status", "VmHWM:", resident_bytes());
}

int64_t available_address_space() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kUnlimited;
  return std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - statm(0));
}

int64_t available_memory_bytes() {
  return std::min({available_in_system(), available_in_control_groups(), available_address_space()});
}

void set_memory_trim(void (*trim)()) {
  memory_trim = trim;
}

void trim_memory() {
  if (const auto trim = memory_trim.load()) trim();
}

void require_memory(double bytes, std::string_view what, std::string_view advice) {
  auto available = static_cast<double>(available_memory_bytes());
  if (bytes <= available) return;
  trim_memory();
  available = static_cast<double>(available_memory_bytes());
  if (bytes <= available) return;
  fail(ExitCode::kRuntime, "{} needs {} of memory, but {} are available; {}", what, format_bytes(bytes),
       format_bytes(available), advice);
}

}  // namespace tamis
