#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tamis::train {

/// The machine and the software, for run.json: processor, its instruction set as torch uses it, cores, memory, system,
/// and the versions of Tamis, LibTorch and the compiler.
nlohmann::json describe_machine();

/// The arguments of this process.
std::vector<std::string> command_line();

/// Floating-point operations per second of ops::linear, which is at::matmul or faster, on `size` x `size` matrices of
/// `dtype` with the current number of threads: the best of several, in about `seconds`. What MFU is measured against.
double measure_matmul_flops(at::ScalarType dtype, at::Device device, int64_t size = 1024, double seconds = 0.3);

}  // namespace tamis::train
