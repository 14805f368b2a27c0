#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tamis::train {

/// How many devices of a type LibTorch sees; 0 where it does not have this type.
int64_t device_count(at::DeviceType type);

/// The machine and software for run.json: processor, cores, memory, system, describe_numerics(), and the versions of
/// Tamis, LibTorch and the compiler.
nlohmann::json describe_machine();

/// The settings, apart from the recipe, that determine the bits of results: {"instruction_set": "avx2", "matmul":
/// {"float32": "aten", "bfloat16": "widened"}} (tamis/base/instruction_set.h, tamis/ops/matmul_backend.h).
nlohmann::json describe_numerics();

/// Selects the matmul backends that describe_numerics() recorded, if this processor supports them. Returns the
/// remaining differences, such as `the instruction set was avx512, is avx2`; empty when results have the same bits.
std::string restore_numerics(const nlohmann::json& recorded);

/// "bfloat16" if the device multiplies it faster than float32, else "float32".
std::string fastest_precision(at::Device device);

/// The dtype of matrix products and mixers in this precision, "float32", "bfloat16" or "float16".
at::ScalarType compute_dtype(const std::string& precision);

/// The git commit of this build, with -dirty if files were modified; "unknown" outside git.
const char* build_commit();

/// The current time, such as `2026-11-23T14:05:09Z`.
std::string utc_now();

/// The arguments of this process.
std::vector<std::string> command_line();

/// Throughput of ops::linear in FLOP/s on `size` x `size` matrices of `dtype` with the current number of threads: the
/// best of the repetitions within about `seconds`. It is the peak that MFU refers to.
double measure_matmul_flops(at::ScalarType dtype, at::Device device, int64_t size = 1024, double seconds = 0.3);

}  // namespace tamis::train
