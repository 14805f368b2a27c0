#include "tamis/base/instruction_set.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis {
namespace {

InstructionSet processor_instruction_set() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return InstructionSet::kBaseline;
  if (!__builtin_cpu_supports("avx512f") || !__builtin_cpu_supports("avx512bw") ||
      !__builtin_cpu_supports("avx512cd") || !__builtin_cpu_supports("avx512dq") ||
      !__builtin_cpu_supports("avx512vl")) {
    return InstructionSet::kAvx2;
  }
  return __builtin_cpu_supports("avx512bf16") ? InstructionSet::kAvx512Bf16 : InstructionSet::kAvx512;
#else
  return InstructionSet::kBaseline;
#endif
}

/// Values of the variables that restrict ATen, oneDNN and MKL to one instruction set.
struct BackendVariables {
  const char *aten, *onednn, *mkl;
};

BackendVariables backend_variables(InstructionSet most) {
  if (most == InstructionSet::kAvx2) return {.aten = "avx2", .onednn = "AVX2", .mkl = "AVX2"};
  return {.aten = "avx512", .onednn = "AVX512_CORE", .mkl = "AVX512"};
}

}  // namespace

std::string to_string(InstructionSet set) {
  switch (set) {
    case InstructionSet::kBaseline:
      return "baseline";
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
  for (const InstructionSet set : {InstructionSet::kAvx2, InstructionSet::kAvx512}) {
    if (name == to_string(set)) return set;
  }
  fail(ExitCode::kUsage, "TAMIS_MAX_ISA must be avx2 or avx512, or unset, but is {}", quoted_name(name));
}

InstructionSet instruction_set() {
  static const InstructionSet usable =
      std::min(processor_instruction_set(), max_instruction_set().value_or(InstructionSet::kAvx512Bf16));
  return usable;
}

void restrict_backends() {
  const std::optional<InstructionSet> most = max_instruction_set();
  if (!most) return;
  const BackendVariables variables = backend_variables(*most);
  setenv("ATEN_CPU_CAPABILITY", variables.aten, /*overwrite=*/1);
  setenv("ONEDNN_MAX_CPU_ISA", variables.onednn, 1);
  setenv("MKL_ENABLE_INSTRUCTIONS", variables.mkl, 1);
}

}  // namespace tamis
