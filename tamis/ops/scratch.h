#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace tamis::ops {

/// Aligned memory that a thread takes piece by piece and keeps for its next work item, unless it has grown large.
template <typename Real>
class ScratchMemory {
 public:
  /// Begins a work item: everything taken before is invalid.
  void reset();
  /// `count` uninitialised numbers, 64-byte aligned.
  template <typename T = Real>
  T* take(int64_t count) {
    return static_cast<T*>(take_bytes(static_cast<size_t>(count) * sizeof(T)));
  }

 private:
  void* take_bytes(size_t bytes);
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  size_t block_size_ = 0;  // of the last block
  size_t used_ = 0;        // of the last block
};

/// The calling thread's memory, reset.
template <typename Real>
ScratchMemory<Real>& thread_memory();

}  // namespace tamis::ops
