#include "tamis/base/arena.h"

#include <sys/mman.h>

#include <iterator>
#include <new>

namespace tamis {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kHugePage = size_t{2} << 20;

constexpr size_t round_up(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

Arena::Arena(size_t address_space) : address_space_(round_up(address_space, kHugePage) + kHugePage) {
  void* memory = mmap(nullptr, address_space_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
                      /*fd=*/-1, /*offset=*/0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  madvise(memory, address_space_, MADV_HUGEPAGE);  // a failure is harmless: the arena then uses 4 KiB pages
  base_ = static_cast<std::byte*>(memory);
  top_ = round_up(reinterpret_cast<uintptr_t>(base_), kHugePage) - reinterpret_cast<uintptr_t>(base_);
}

Arena::~Arena() {
  munmap(base_, address_space_);
}

Arena::Free Arena::add_free(Offset offset, size_t size) {
  by_size_.emplace(size, offset);
  return free_.emplace(offset, size).first;
}

void Arena::remove_free(Free block) {
  by_size_.erase({block->second, block->first});
  free_.erase(block);
}

void* Arena::allocate(size_t bytes) {
  const size_t size = round_up(bytes == 0 ? 1 : bytes, kPage);
  const std::lock_guard lock(mutex_);
  Offset offset = top_;
  if (const auto fitting = by_size_.lower_bound({size, 0}); fitting != by_size_.end()) {
    const Free block = free_.find(fitting->second);
    offset = block->first;
    const size_t rest = block->second - size;
    remove_free(block);
    if (rest > 0) add_free(offset + size, rest);
  } else {
    // A free block that ends at the top becomes the beginning of the new block.
    const Free last = free_.empty() ? free_.end() : std::prev(free_.end());
    const bool grows = last != free_.end() && last->first + last->second == top_;
    if (grows) offset = last->first;
    if (size > address_space_ - offset) return nullptr;
    if (grows) remove_free(last);
    top_ = offset + size;
  }
  allocated_[offset] = size;
  return base_ + offset;
}

void Arena::release(void* block) {
  if (block == nullptr) return;
  Offset offset = static_cast<Offset>(static_cast<std::byte*>(block) - base_);
  const std::lock_guard lock(mutex_);
  const auto found = allocated_.find(offset);
  size_t size = found->second;
  allocated_.erase(found);
  Free next = free_.lower_bound(offset);
  if (next != free_.begin()) {
    if (const Free before = std::prev(next); before->first + before->second == offset) {
      offset = before->first;
      size += before->second;
      remove_free(before);
    }
  }
  if (next != free_.end() && next->first == offset + size) {
    size += next->second;
    remove_free(next);
  }
  add_free(offset, size);
}

size_t Arena::trim() {
  const std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const auto& [offset, size] : free_) {
    if (madvise(base_ + offset, size, MADV_DONTNEED) == 0) sum += size;
  }
  // The highest free block becomes part of the unused space above the top.
  if (const Free last = free_.empty() ? free_.end() : std::prev(free_.end());
      last != free_.end() && last->first + last->second == top_) {
    top_ = last->first;
    remove_free(last);
  }
  return sum;
}

}  // namespace tamis
