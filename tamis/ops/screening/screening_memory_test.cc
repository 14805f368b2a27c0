// O(T) memory, measured: the peak of all allocations of this program, tensors and others.

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#include "tamis/ops/screening/screening.h"
#include "tamis/ops/testing.h"

namespace {

std::atomic<int64_t> plain_bytes{0};
std::atomic<int64_t> plain_peak{0};

void* count_new(size_t size, size_t alignment) {
  void* memory = alignment > 0 ? std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment)
                               : std::malloc(size == 0 ? 1 : size);
  if (memory == nullptr) throw std::bad_alloc();
  const int64_t now = plain_bytes += static_cast<int64_t>(malloc_usable_size(memory));
  for (int64_t peak = plain_peak; peak < now && !plain_peak.compare_exchange_weak(peak, now);) continue;
  return memory;
}

void count_delete(void* memory) {
  if (memory != nullptr) plain_bytes -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t size) {
  return count_new(size, 0);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return count_new(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept try {
  return count_new(size, 0);
} catch (const std::bad_alloc&) {
  return nullptr;
}
void operator delete(void* memory) noexcept {
  count_delete(memory);
}
void operator delete(void* memory, size_t) noexcept {
  count_delete(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  count_delete(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  count_delete(memory);
}

namespace tamis::ops {
namespace {

/// Peak bytes of a forward and backward pass over T tokens, inputs included.
int64_t peak_bytes_here(int64_t T, double s_w) {
  const testing::PeakAllocation tensors;
  const int64_t before = plain_bytes;
  plain_peak = before;
  const auto random = [&](int64_t width, uint64_t seed) {
    return testing::random_normal({1, T, 2, width}, seed).requires_grad_();
  };
  const at::Tensor q = random(16, 1), k = random(16, 2), v = random(32, 3), gate = random(32, 4);
  const at::Tensor s_w_H = at::full({2}, s_w).requires_grad_(), s_r_H = at::zeros({2}).requires_grad_();
  torch::autograd::grad({screening(q, k, v, s_w_H, s_r_H, {.gate = gate})}, {q, k, v, gate, s_w_H, s_r_H},
                        {gate.detach()});
  return tensors.peak_bytes() + plain_peak - before;
}

int64_t peak_bytes(int64_t T, double s_w) {
  int64_t peak = 0;
  testing::in_fresh_thread([&] { peak = peak_bytes_here(T, s_w); });
  return peak;
}

TEST(ScreeningMemory, GrowsLinearlyWithTheSequence) {
  for (const double s_w : {3.0, 95.0}) {
    const int64_t at_4k = peak_bytes(4096, s_w), at_16k = peak_bytes(16384, s_w);
    EXPECT_LE(at_16k, 4.5 * at_4k) << "s_w " << s_w;
    EXPECT_LT(at_16k, int64_t{16384} * 16384) << "s_w " << s_w;  // less than one byte per pair
  }
}

}  // namespace
}  // namespace tamis::ops
