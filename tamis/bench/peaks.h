#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>

#include "tamis/bench/options.h"

namespace tamis::bench {

/// Peak rates of the machine, measured in this process by at::matmul and by summing numbers in memory: the best of all
/// measurements, as other load can only lower them.
class Peaks {
 public:
  explicit Peaks(const PeakOptions& options) : options_(options) {}

  /// Measures with the current number of threads, matmul for the floating-point dtypes. To be called before and after
  /// the work that is compared with the peaks.
  void measure(std::span<const at::ScalarType> dtypes);

  double flops(at::ScalarType dtype, int64_t threads) const { return flops_.at({threads, dtype}); }
  double bytes_per_second(int64_t threads) const { return bytes_per_second_.at(threads); }
  /// {"matmul": [{"threads", "dtype", "backend", "flops_per_second"}], "read": [{"threads", "bytes_per_second"}]}
  nlohmann::json to_json() const;
  /// `float32 203 GFLOP/s, bfloat16 440 GFLOP/s, 35.0 GB/s with 2 threads`, a line for every number of threads.
  std::string to_text() const;

 private:
  PeakOptions options_;
  std::map<std::pair<int64_t, at::ScalarType>, double> flops_;
  std::map<int64_t, double> bytes_per_second_;
};

/// Bytes per second that the current number of threads read from `bytes` of memory: the best of several passes.
double measure_read_bandwidth(int64_t bytes, double seconds);

}  // namespace tamis::bench
