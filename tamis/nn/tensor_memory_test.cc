#include "tamis/nn/tensor_memory.h"

#include <ATen/ATen.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>

namespace tamis::nn {
namespace {

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(TensorMemory, SteadyStepsTouchNoNewPages) {
  keep_tensor_memory();
  const at::Tensor weight = at::randn({256, 256});
  const auto step = [&] {
    at::Tensor x = at::ones({8192, 256});
    for (int layer = 0; layer < 6; ++layer) x = at::relu(at::mm(x, weight)) / 16;
    return x.sum().item<float>();
  };
  for (int warm = 0; warm < 3; ++warm) step();
  std::array<int64_t, 11> faults{};
  for (int64_t& of_step : faults) {
    const int64_t before = page_faults();
    step();
    of_step = page_faults() - before;
  }
  // Most steps: a thread that got no core in the warm-up touches its own buffers in a later one. malloc has thousands.
  std::nth_element(faults.begin(), faults.begin() + 5, faults.end());
  EXPECT_LT(faults[5], 10);
}

TEST(TensorMemory, MemoryOfReleasedTensorsIsUsedAgain) {
  keep_tensor_memory();
  at::Tensor large = at::ones({16 << 20});
  const void* const memory = large.const_data_ptr();
  large.reset();
  const int64_t before = page_faults();
  large = at::zeros({16 << 20});
  EXPECT_EQ(large.const_data_ptr(), memory);
  EXPECT_LT(page_faults() - before, 16);  // 64 MiB are at least 32 pages
}

TEST(TensorMemory, RefusesWhatNoMachineHas) {
  keep_tensor_memory();
  EXPECT_ANY_THROW(at::empty({int64_t{1} << 40}, at::kDouble));
}
#endif

TEST(TensorMemory, ServesRawBlocksOfAnySize) {
  keep_tensor_memory();
  c10::Allocator* allocator = c10::GetCPUAllocator();
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1000}, size_t{64} << 10, size_t{5} << 20}) {
    auto* block = static_cast<unsigned char*>(allocator->raw_allocate(size));
    if (size > 0) block[0] = block[size - 1] = 1;
    allocator->raw_deallocate(block);
  }
}

}  // namespace
}  // namespace tamis::nn
