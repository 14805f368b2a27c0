#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tamis/bench/measure.h"
#include "tamis/bench/peaks.h"

namespace tamis::bench {

/// What every bench takes.
struct Options {
  std::vector<int64_t> threads = {0};  // numbers of threads, one after the other; 0: one per core
  std::vector<at::ScalarType> dtypes = {at::kFloat, at::kBFloat16};
  MeasureOptions measure;
  PeakOptions peaks;
};

/// "float32", "bfloat16", or "int8" (at::kChar): weights of decoding only.
std::string dtype_name(at::ScalarType dtype);

/// Throws ExitCode::kUsage on any other name.
at::ScalarType dtype_named(const std::string& name);

/// Throws ExitCode::kUsage when int8 is among `dtypes`: only decoding has it.
void refuse_int8(const std::vector<at::ScalarType>& dtypes);

}  // namespace tamis::bench
