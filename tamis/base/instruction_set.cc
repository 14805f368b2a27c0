#include "tamis/base/instruction_set.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

#include "tamis/base/error.h"
#include "tamis/base/names.h"

#if !defined(TAMIS_SVE_BITS)  // not on Arm
#define TAMIS_SVE_BITS 0
#endif

namespace tamis {
namespace {

#if defined(__x86_64__)
constexpr unsigned kAmxBFloat16 = 1u << 22, kAvx512Float16 = 1u << 23;  // of extended_features()

/// Structured extended feature flags of the processor, as in edx; 0 where it has none.
unsigned extended_features() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid_count(/*leaf=*/7, 0, &eax, &ebx, &ecx, &edx) != 0 ? edx : 0;
}

/// Whether products of bfloat16 are faster than those of float32. Intel's processors from Sapphire Rapids on, those
/// with float16, have AMX for them, which virtual machines may hide: their AVX-512 instruction multiplies half as many
/// numbers as float32's in the same time (VDPBF16PS takes 0.71 ns on an Emerald Rapids, VFMADD231PS 0.18 ns; `tamis
/// bench` measures peaks of 174 and 334 GFLOP/s).
bool has_fast_bfloat16() {
  if (!__builtin_cpu_supports("avx512bf16")) return false;
  const bool made_for_amx = __builtin_cpu_is("intel") && (extended_features() & kAvx512Float16) != 0;
  return !made_for_amx || has_amx_bfloat16();
}
#endif

InstructionSet processor_instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return InstructionSet::kBaseline;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return InstructionSet::kAvx2;
  }
  return has_fast_bfloat16() ? InstructionSet::kAvx512Bf16 : InstructionSet::kAvx512;
#elif defined(__aarch64__) && defined(__linux__)
  // What Highway requires: SVE for vectors of 256 bits, SVE2 with AES for those of 128.
  constexpr unsigned long kSve2 = HWCAP2_SVE2 | HWCAP2_SVEAES;
  const bool sve = (getauxval(AT_HWCAP) & HWCAP_SVE) != 0, sve2 = (getauxval(AT_HWCAP2) & kSve2) == kSve2;
  const int length = sve ? prctl(PR_SVE_GET_VL) : -1;
  const bool has_kernels = length >= 0 && (length & PR_SVE_VL_LEN_MASK) * 8 == TAMIS_SVE_BITS;
  return has_kernels && (sve2 || TAMIS_SVE_BITS > 128) ? InstructionSet::kSve : InstructionSet::kNeon;
#elif defined(__aarch64__)
  return InstructionSet::kNeon;
#else
  return InstructionSet::kBaseline;
#endif
}

/// Instruction sets that TAMIS_MAX_ISA may name.
#if defined(__aarch64__)
constexpr InstructionSet kLimits[] = {InstructionSet::kNeon};
#else
constexpr InstructionSet kLimits[] = {InstructionSet::kAvx2, InstructionSet::kAvx512};
#endif

/// Values of the variables that restrict ATen, oneDNN and MKL to one instruction set. MKL exists on x86 only.
struct BackendVariables {
  const char *aten, *onednn, *mkl;
};

BackendVariables backend_variables(InstructionSet most) {
  if (most == InstructionSet::kNeon) return {.aten = "default", .onednn = "ADVANCED_SIMD", .mkl = ""};
  if (most == InstructionSet::kAvx2) return {.aten = "avx2", .onednn = "AVX2", .mkl = "AVX2"};
  return {.aten = "avx512", .onednn = "AVX512_CORE", .mkl = "AVX512"};
}

/// The value of MKL_CBWR with which MKL's products have the same bits for any number of threads; null where it is not
/// needed or, on processors that are not Intel's, not available.
const char* reproducible_mkl() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_is("intel")) return nullptr;
  if (instruction_set() >= InstructionSet::kAvx512) return "AVX512,STRICT";
  if (instruction_set() == InstructionSet::kAvx2) return "AVX2,STRICT";
#endif
  return nullptr;
}

}  // namespace

std::string to_string(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBaseline:
      return "baseline";
    case InstructionSet::kNeon:
      return "neon";
    case InstructionSet::kSve:
      return fmt::format("sve{}", TAMIS_SVE_BITS);
    case InstructionSet::kAvx2:
      return "avx2";
    case InstructionSet::kAvx512:
      return "avx512";
    case InstructionSet::kAvx512Bf16:
      return "avx512_bf16";
  }
  return "";
}

std::optional<InstructionSet> max_instruction_set() {
  const char* value = std::getenv("TAMIS_MAX_ISA");
  const std::string_view name = value == nullptr ? "" : value;
  if (name.empty()) return std::nullopt;
  std::string known;
  for (const InstructionSet set : kLimits) {
    if (name == to_string(set)) return set;
    known += (known.empty() ? "" : " or ") + to_string(set);
  }
  fail(ExitCode::kUsage, "TAMIS_MAX_ISA must be {}, or unset, but is {}", known, quoted_name(name));
}

InstructionSet instruction_set() {
  static const InstructionSet usable =
      std::min(processor_instruction_set(), max_instruction_set().value_or(InstructionSet::kAvx512Bf16));
  return usable;
}

bool has_amx_bfloat16() {
#if defined(__x86_64__)
  return !max_instruction_set() && (extended_features() & kAmxBFloat16) != 0;
#else
  return false;
#endif
}

void prepare_backends() {
  if (const std::optional<InstructionSet> most = max_instruction_set()) {
    const BackendVariables variables = backend_variables(*most);
    setenv("ATEN_CPU_CAPABILITY", variables.aten, /*overwrite=*/1);
    setenv("ONEDNN_MAX_CPU_ISA", variables.onednn, 1);
    setenv("MKL_ENABLE_INSTRUCTIONS", variables.mkl, 1);
  }
  if (const char* branch = reproducible_mkl()) setenv("MKL_CBWR", branch, /*overwrite=*/0);
}

}  // namespace tamis
