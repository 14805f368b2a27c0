#include "tamis/ops/matmul_backend.h"

#include <ATen/ATen.h>

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <array>
#include <atomic>
#include <string_view>
#include <utility>

#include "tamis/base/instruction_set.h"
#include "tamis/ops/onednn_linear.h"
#include "tamis/ops/vector_units.h"

namespace tamis::ops {
namespace {

constexpr std::array<std::pair<MatmulBackend, std::string_view>, 4> kNames = {{
    {MatmulBackend::kAten, "aten"},
    {MatmulBackend::kOneDnn, "onednn"},
    {MatmulBackend::kWidened, "widened"},
    {MatmulBackend::kTiled, "tiled"},
}};

/// Whether the processor has fast instructions for products of bfloat16.
bool has_bfloat16_products() {
#if defined(__aarch64__)
  return (getauxval(AT_HWCAP2) & HWCAP2_BF16) != 0;
#else
  return instruction_set() >= InstructionSet::kAvx512Bf16;
#endif
}

/// Whether the processor has vector units that MKL leaves half unused: with AVX-512 it is for Intel's processors alone.
bool has_units_beyond_mkl() {
#if defined(__x86_64__)
  return !__builtin_cpu_is("intel") && has_512_bit_units();
#else
  return false;
#endif
}

std::atomic<MatmulBackend>& chosen(at::ScalarType dtype) {
  static std::atomic<MatmulBackend> float32{matmul_backends(at::kFloat).front()};
  if (dtype == at::kFloat) return float32;
  static std::atomic<MatmulBackend> bfloat16{matmul_backends(at::kBFloat16).front()};
  return bfloat16;
}

}  // namespace

std::string to_string(MatmulBackend backend) {
  return std::string(kNames.at(static_cast<size_t>(backend)).second);
}

std::vector<MatmulBackend> matmul_backends(at::ScalarType dtype) {
  const InstructionSet processor = instruction_set();
  if (dtype == at::kFloat && processor >= InstructionSet::kAvx512 && at::hasMKL() && has_onednn_linear()) {
    if (has_units_beyond_mkl()) return {MatmulBackend::kOneDnn, MatmulBackend::kAten};
    return {MatmulBackend::kAten, MatmulBackend::kOneDnn};
  }
  if (dtype == at::kBFloat16 && has_amx_bfloat16()) return {MatmulBackend::kTiled};
  if (dtype == at::kBFloat16 && !has_bfloat16_products()) {
    if (processor == InstructionSet::kAvx2) return {MatmulBackend::kWidened};
    return {MatmulBackend::kWidened, MatmulBackend::kAten};
  }
  return {MatmulBackend::kAten};
}

MatmulBackend matmul_backend(at::ScalarType dtype) {
  if (dtype != at::kFloat && dtype != at::kBFloat16) return MatmulBackend::kAten;
  return chosen(dtype).load(std::memory_order_relaxed);
}

void set_matmul_backend(at::ScalarType dtype, MatmulBackend backend) {
  const bool fits =
      backend == MatmulBackend::kAten || (backend == MatmulBackend::kOneDnn && dtype == at::kFloat) ||
      ((backend == MatmulBackend::kWidened || backend == MatmulBackend::kTiled) && dtype == at::kBFloat16);
  TORCH_CHECK_VALUE(fits && (backend != MatmulBackend::kOneDnn || has_onednn_linear()), "matmul backend: products of ",
                    dtype, " by ", to_string(backend), " are not available");
  if (dtype == at::kFloat || dtype == at::kBFloat16) chosen(dtype) = backend;
}

}  // namespace tamis::ops
