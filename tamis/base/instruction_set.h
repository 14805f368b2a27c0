#pragma once

#include <optional>
#include <string>

namespace tamis {

/// Vector instruction sets; each includes those before it of the same architecture. x86-64: kAvx512 means F, BW, CD, DQ
/// and VL; kAvx512Bf16 adds bfloat16 dot products with float32 accumulation that are faster than products of float32:
/// not those of a Sapphire Rapids or later without AMX. 64-bit Arm: kSve means vectors of the one length that this
/// build has kernels for (TAMIS_SVE_BITS). Other architectures are kBaseline.
enum class InstructionSet { kBaseline, kNeon, kSve, kAvx2, kAvx512, kAvx512Bf16 };

/// `baseline`, `neon`, `sve256`, `avx2`, `avx512`, `avx512_bf16`.
std::string to_string(InstructionSet set);

/// The best instruction set that the processor supports and TAMIS_MAX_ISA allows; constant for the process.
InstructionSet instruction_set();

/// Whether the processor multiplies tiles of bfloat16 (AMX) and TAMIS_MAX_ISA is not set.
bool has_amx_bfloat16();

/// The value of the environment variable TAMIS_MAX_ISA, the newest instruction set that Tamis, LibTorch, oneDNN and MKL
/// may use: on x86-64 `avx2` or `avx512` (without bfloat16), on 64-bit Arm `neon`; none when it is unset or empty.
/// Throws ExitCode::kUsage for any other value.
std::optional<InstructionSet> max_instruction_set();

/// Sets environment variables that LibTorch, oneDNN and MKL read at their first operation: call it before that, while
/// the process has one thread. TAMIS_MAX_ISA is applied to them, and on Intel's processors MKL_CBWR, unless it is set,
/// makes the bits of MKL's products independent of the number of threads. Throws like max_instruction_set.
void prepare_backends();

}  // namespace tamis
