#include "tamis/nn/tensor_memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <malloc.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <new>

#include "tamis/base/arena.h"
#include "tamis/base/memory.h"

namespace tamis::nn {
namespace {

constexpr size_t kLarge = size_t{64} << 10;  // smaller tensors are malloc's business

Arena* arena = nullptr;  // never destroyed: tensors may outlive main
size_t machine_memory = 0;

/// One for all blocks: callers of raw_deallocate do not say which kind theirs is.
void release(void* block) {
  if (arena->owns(block)) {
    arena->release(block);
  } else {
    c10::free_cpu(block);
  }
}

class ArenaAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > machine_memory) throw std::bad_alloc();  // the kernel would overcommit and later kill the process
    void* block = bytes < kLarge ? c10::alloc_cpu(bytes) : arena->allocate(bytes);
    if (block == nullptr && bytes > 0) throw std::bad_alloc();
    return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }
};

bool malloc_is_watched() {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  return true;
#else
  return false;
#endif
}

}  // namespace

void keep_tensor_memory() {
  rlimit limit{};
  const bool limited = getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur != RLIM_INFINITY;
  // Each thread would reserve 64 MiB or more: too much under a limit, and at moments when libraries need some of it.
  if (limited) mallopt(M_ARENA_MAX, 1);
  if (arena != nullptr || limited || malloc_is_watched()) return;
  mallopt(M_MMAP_MAX, 0);  // MKL's and oneDNN's own buffers too come from memory that is kept
  mallopt(M_TRIM_THRESHOLD, 1 << 30);
  mallopt(M_TOP_PAD, 16 << 20);
  machine_memory = static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  try {
    arena = new Arena(4 * machine_memory);
  } catch (const std::bad_alloc&) {
    return;  // the kernel reserves no address space beyond its memory: malloc it is
  }
  static ArenaAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/1);
  set_memory_trim([] { arena->trim(); });
}

int64_t page_faults() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}

}  // namespace tamis::nn
