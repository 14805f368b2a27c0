#include "tamis/ops/vector_units.h"

#include <algorithm>
#include <array>
#include <chrono>

#include "tamis/base/instruction_set.h"

namespace tamis::ops {

#if defined(__x86_64__)

namespace {

/// Ten independent multiply-adds a round, which fill the pipelines, of registers that hold zeros.
#define TAMIS_MULTIPLY_ADD(registers, rounds)                                                                   \
  asm volatile(                                                                                                 \
      ".irp i,0,1,2,3,4,5,6,7,8,9,10\n vxorps %%xmm\\i,%%xmm\\i,%%xmm\\i\n .endr\n"                             \
      "1: .irp i,0,1,2,3,4,5,6,7,8,9\n vfmadd231ps %%" registers "10,%%" registers "10,%%" registers            \
      "\\i\n"                                                                                                   \
      ".endr\n dec %0\n jnz 1b\n vzeroupper\n"                                                                  \
      : "+r"(rounds)                                                                                            \
      :                                                                                                         \
      : "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", \
        "xmm12", "xmm13", "xmm14", "xmm15")

template <typename Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

bool are_whole() {
  std::array<double, 101> ratios{};
  for (double& ratio : ratios) {
    int rounds = 3000, same = rounds;
    const double halves = seconds_of([&] { TAMIS_MULTIPLY_ADD("ymm", rounds); });
    ratio = seconds_of([&] { TAMIS_MULTIPLY_ADD("zmm", same); }) / halves;
  }
  const auto median = ratios.begin() + ratios.size() / 2;
  std::nth_element(ratios.begin(), median, ratios.end());
  return *median < 1.2;
}

#undef TAMIS_MULTIPLY_ADD

}  // namespace

bool measure_512_bit_units() {
  return instruction_set() >= InstructionSet::kAvx512 && are_whole();
}

#else

bool measure_512_bit_units() {
  return false;
}

#endif

bool has_512_bit_units() {
  static const bool result = measure_512_bit_units();
  return result;
}

}  // namespace tamis::ops
