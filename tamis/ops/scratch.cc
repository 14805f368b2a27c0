#include "tamis/ops/scratch.h"

#include <algorithm>

namespace tamis::ops {

template <typename Real>
ScratchMemory<Real>& thread_memory() {
  thread_local ScratchMemory<Real> memory;
  memory.reset();
  return memory;
}

template ScratchMemory<float>& thread_memory();
template ScratchMemory<double>& thread_memory();

template <typename Real>
void ScratchMemory<Real>::reset() {
  constexpr size_t kKeep = size_t{16} << 20;
  const bool grew =
      blocks_.size() > 1;  // the last work item needed several blocks: allocate one as large as all of them
  const size_t wanted = grew ? 2 * block_size_ : block_size_;
  if (grew || wanted > kKeep) {
    blocks_.clear();
    block_size_ = wanted <= kKeep ? wanted : 0;
    if (block_size_ > 0) blocks_.push_back(std::unique_ptr<std::byte[]>(new std::byte[block_size_]));
  }
  used_ = 0;
}

template <typename Real>
void* ScratchMemory<Real>::take_bytes(size_t bytes) {
  constexpr size_t kAlign = 64;
  constexpr size_t kFirstBlock = size_t{1} << 18;
  const size_t wanted = bytes + kAlign;
  if (blocks_.empty() || used_ + wanted > block_size_) {
    block_size_ = std::max({wanted, kFirstBlock, block_size_ * 2});
    blocks_.push_back(std::unique_ptr<std::byte[]>(new std::byte[block_size_]));
    used_ = 0;
  }
  const auto address = reinterpret_cast<uintptr_t>(blocks_.back().get() + used_);
  const size_t skip = (kAlign - address % kAlign) % kAlign;
  void* result = blocks_.back().get() + used_ + skip;
  used_ += skip + bytes;
  return result;
}

template class ScratchMemory<float>;
template class ScratchMemory<double>;

}  // namespace tamis::ops
