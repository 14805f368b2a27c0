#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>

namespace tamis {

/// Memory for large blocks that is kept when it is released. malloc gives blocks above 32 MiB back to the kernel, which
/// clears them page by page when they are wanted again: in training that costs more than the arithmetic it serves.
///
///   Arena arena(bytes of address space);       // reserved, not taken: memory is taken when it is first written to
///   void* block = arena.allocate(size);        // 4 KiB aligned; nullptr when the address space is used up
///   arena.release(block);
///
/// The smallest free block that fits is taken, what is left of it stays free, neighbours are joined: after its first
/// step a loop that always asks for the same sizes takes nothing new. Pages of 2 MiB where the kernel has them. Safe to
/// call from several threads; a call costs a logarithm of the number of free blocks.
class Arena {
 public:
  /// Throws std::bad_alloc when the address space cannot be reserved.
  explicit Arena(size_t address_space);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  void* allocate(size_t bytes);
  void release(void* block);
  /// Whether a block came from here.
  bool owns(const void* block) const { return block >= base_ && block < base_ + address_space_; }

  size_t live() const;    // bytes handed out
  size_t cached() const;  // bytes released and kept: the next blocks come from here
  /// Gives the cached bytes back to the system; returns how many.
  size_t trim();

 private:
  using Offset = size_t;
  using Free = std::map<Offset, size_t>::iterator;
  Free add_free(Offset offset, size_t size);
  void remove_free(Free block);

  mutable std::mutex mutex_;
  std::byte* base_ = nullptr;
  size_t address_space_ = 0;
  size_t top_ = 0;  // nothing above was handed out yet
  size_t live_ = 0;
  std::map<Offset, size_t> free_;                  // by place, below top_
  std::set<std::pair<size_t, Offset>> by_size_;    // the same blocks
  std::unordered_map<Offset, size_t> handed_out_;  // sizes
};

}  // namespace tamis
