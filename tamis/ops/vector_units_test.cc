#include "tamis/ops/vector_units.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "tamis/base/instruction_set.h"

namespace tamis::ops {
namespace {

TEST(VectorUnits, HaveNo512BitsWithoutAvx512) {
  if (instruction_set() >= InstructionSet::kAvx512) GTEST_SKIP() << "this processor has AVX-512";
  EXPECT_FALSE(has_512_bit_units());
}

TEST(VectorUnits, AreTheSameInEveryMeasurementOnABusyMachine) {
  if (instruction_set() < InstructionSet::kAvx512) GTEST_SKIP() << "this processor has no AVX-512";
#if defined(__x86_64__)
  if (__builtin_cpu_is("intel")) GTEST_SKIP() << "on Intel's processors nothing depends on the measurement";
#endif
  const bool expected = has_512_bit_units();
  std::atomic<bool> done = false;
  std::atomic<float> total = 0;
  const auto multiply_and_add = [&] {
    float sums[64] = {};
    while (!done) {
      for (float& sum : sums) sum = sum * 0.5F + 1.0F;
    }
    for (const float sum : sums) total = total + sum;
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) threads.emplace_back(multiply_and_add);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(measure_512_bit_units(), expected);
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(total, 0);
}

}  // namespace
}  // namespace tamis::ops
