#pragma once

#include <optional>
#include <string>

namespace tamis {

/// Vector instructions of x86-64, each with those before it. kAvx512 means F, BW, CD, DQ and VL; kAvx512Bf16 adds
/// products of bfloat16 numbers summed in float32. Other architectures are kBaseline.
enum class InstructionSet { kBaseline, kAvx2, kAvx512, kAvx512Bf16 };

/// `baseline`, `avx2`, `avx512`, `avx512_bf16`.
std::string to_string(InstructionSet set);

/// What this processor has and TAMIS_MAX_ISA allows. Does not change while the process runs.
InstructionSet instruction_set();

/// The environment variable TAMIS_MAX_ISA: the newest instructions that Tamis, LibTorch, oneDNN and MKL may use, `avx2`
/// or `avx512` (without bfloat16); none when it is unset or empty. Throws ExitCode::kUsage for any other value.
std::optional<InstructionSet> max_instruction_set();

/// Passes TAMIS_MAX_ISA on to LibTorch, oneDNN and MKL, through the environment variables that they read when they
/// first compute. To be called before that, by one thread. Throws as max_instruction_set.
void restrict_backends();

}  // namespace tamis
