#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tamis::train {

/// The machine and the software, for run.json: processor, cores, memory, system, describe_numerics(), and the versions
/// of Tamis, LibTorch and the compiler.
nlohmann::json describe_machine();

/// What decides the bits of a result beside the recipe: {"instruction_set": "avx2", "matmul": {"float32": "aten",
/// "bfloat16": "widened"}} (tamis/base/instruction_set.h, tamis/ops/matmul_backend.h).
nlohmann::json describe_numerics();

/// Sets the matmul backends that describe_numerics() recorded, as far as they may be chosen on this processor. Returns
/// what differs all the same, as `the instruction set was avx512, is avx2`; empty when results have the same bits.
std::string restore_numerics(const nlohmann::json& recorded);

/// "bfloat16" where the device multiplies it faster than float32, "float32" elsewhere.
std::string fastest_precision(at::Device device);

/// The commit that this program was built from, with -dirty when files differed from it; "unknown" outside git.
const char* build_commit();

/// `2026-11-23T14:05:09Z`.
std::string utc_now();

/// The arguments of this process.
std::vector<std::string> command_line();

/// Floating-point operations per second of ops::linear, which is at::matmul or faster, on `size` x `size` matrices of
/// `dtype` with the current number of threads: the best of several, in about `seconds`. What MFU is measured against.
double measure_matmul_flops(at::ScalarType dtype, at::Device device, int64_t size = 1024, double seconds = 0.3);

}  // namespace tamis::train
