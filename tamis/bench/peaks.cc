#include "tamis/bench/peaks.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>

#include "tamis/base/terminal.h"
#include "tamis/bench/dtypes.h"
#include "tamis/ops/matmul_backend.h"
#include "tamis/ops/parallel.h"
#include "tamis/train/machine.h"

namespace tamis::bench {

double measure_read_bandwidth(int64_t bytes, double seconds) {
  const int64_t words = bytes / static_cast<int64_t>(sizeof(uint64_t));
  const at::Tensor memory = at::ones({words}, at::kLong);
  const int64_t* data = memory.const_data_ptr<int64_t>();
  std::atomic<int64_t> total{0};  // used, so that the compiler does not remove the reads
  const auto read = [&] {
    ops::parallel_chunks(words, 1, [&](int64_t first, int64_t last) {
      total += std::accumulate(data + first, data + last, int64_t{0});
    });
  };
  read();
  double best = 1e30;
  const double start = now_seconds();
  do {
    const double before = now_seconds();
    read();
    best = std::min(best, now_seconds() - before);
  } while (now_seconds() - start < seconds);
  return static_cast<double>(bytes) / best;
}

void Peaks::measure(std::span<const at::ScalarType> dtypes) {
  const int64_t threads = at::get_num_threads();
  for (const at::ScalarType dtype : dtypes) {
    if (!at::isFloatingType(dtype)) continue;
    double& best = flops_[{threads, dtype}];
    best = std::max(best, train::measure_matmul_flops(dtype, at::kCPU, options_.matmul_size, options_.seconds));
  }
  double& best = bytes_per_second_[threads];
  best = std::max(best, measure_read_bandwidth(options_.read_bytes, options_.seconds));
}

nlohmann::json Peaks::to_json() const {
  nlohmann::json json = {{"matmul", nlohmann::json::array()}, {"read", nlohmann::json::array()}};
  for (const auto& [setting, flops] : flops_) {
    json["matmul"].push_back({{"threads", setting.first},
                              {"dtype", dtype_name(setting.second)},
                              {"backend", to_string(ops::matmul_backend(setting.second))},
                              {"flops_per_second", flops}});
  }
  for (const auto& [threads, bandwidth] : bytes_per_second_) {
    json["read"].push_back({{"threads", threads}, {"bytes_per_second", bandwidth}});
  }
  return json;
}

std::string Peaks::to_text() const {
  std::string text;
  for (const auto& [threads, bandwidth] : bytes_per_second_) {
    text += fmt::format("peak, {}:", counted(threads, "thread"));
    for (const auto& [setting, flops] : flops_) {
      if (setting.first != threads) continue;
      text += fmt::format(" {} {:.1f} GFLOP/s ({}),", dtype_name(setting.second), flops / 1e9,
                          to_string(ops::matmul_backend(setting.second)));
    }
    text += fmt::format(" {:.1f} GB/s read\n", bandwidth / 1e9);
  }
  return text;
}

}  // namespace tamis::bench
