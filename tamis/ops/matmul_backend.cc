#include "tamis/ops/matmul_backend.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <ctime>
#include <functional>
#include <string_view>
#include <utility>

#include "tamis/base/instruction_set.h"
#include "tamis/ops/onednn_linear.h"

namespace tamis::ops {
namespace {

constexpr std::array<std::pair<MatmulBackend, std::string_view>, 4> kNames = {{
    {MatmulBackend::kAten, "aten"},
    {MatmulBackend::kOneDnn, "onednn"},
    {MatmulBackend::kWidened, "widened"},
    {MatmulBackend::kTiled, "tiled"},
}};

/// One thread computes everything while this exists. It sets ATen's number of threads, because MKL has one of its own
/// that PlannedForOneThread leaves as it is.
class OneThread {
 public:
  OneThread() {
    if (!at::in_parallel_region()) at::set_num_threads(1);
  }
  ~OneThread() {
    if (!at::in_parallel_region()) at::set_num_threads(threads_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_ = at::get_num_threads();
};

/// Processor time of this thread.
double seconds_of(const std::function<void()>& product) {
  const auto now = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double start = now();
  product();
  return now() - start;
}

/// How many times faster `b` is than `a`: the median of interleaved pairs. One thread and its processor time, because
/// on cores that other programs use libraries differ in how their threads wait, which is not what is compared here.
double speedup(const std::function<void()>& a, const std::function<void()>& b) {
  const OneThread one_thread;
  a();
  b();  // oneDNN compiles a kernel at its first call
  std::array<double, 15> ratios{};
  for (double& ratio : ratios) {
    const double seconds = seconds_of(a);
    ratio = seconds / seconds_of(b);
  }
  const auto median = ratios.begin() + ratios.size() / 2;
  std::nth_element(ratios.begin(), median, ratios.end());
  return *median;
}

constexpr double kClearly = 1.5;  // a difference that is not noise

MatmulBackend measured_float32() {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({512, 256}), weight = at::ones({1024, 256});
  const double onednn = speedup([&] { at::linear(x, weight); }, [&] { onednn_linear(x, weight); });
  return onednn > kClearly ? MatmulBackend::kOneDnn : MatmulBackend::kAten;
}

MatmulBackend measured_bfloat16() {
  const at::NoGradGuard no_grad;
  const at::Tensor x = at::ones({512, 256}), weight = at::ones({1024, 256});
  const at::Tensor x_bfloat16 = x.to(at::kBFloat16), weight_bfloat16 = weight.to(at::kBFloat16);
  const double aten = speedup([&] { at::linear(x, weight); }, [&] { at::linear(x_bfloat16, weight_bfloat16); });
  return aten > kClearly ? MatmulBackend::kAten : MatmulBackend::kWidened;
}

bool is_x86() {
#if defined(__x86_64__)
  return true;
#else
  return false;
#endif
}

MatmulBackend choice(at::ScalarType dtype) {
  const std::vector<MatmulBackend> candidates = matmul_backends(dtype);
  if (candidates.size() == 1) return candidates.front();
  return dtype == at::kFloat ? measured_float32() : measured_bfloat16();
}

std::atomic<MatmulBackend>& chosen(at::ScalarType dtype) {
  static std::atomic<MatmulBackend> float32{choice(at::kFloat)};
  if (dtype == at::kFloat) return float32;
  static std::atomic<MatmulBackend> bfloat16{choice(at::kBFloat16)};
  return bfloat16;
}

}  // namespace

std::string to_string(MatmulBackend backend) {
  return std::string(kNames.at(static_cast<size_t>(backend)).second);
}

std::vector<MatmulBackend> matmul_backends(at::ScalarType dtype) {
  const InstructionSet processor = instruction_set();
  if (dtype == at::kFloat && processor >= InstructionSet::kAvx512 && at::hasMKL() && has_onednn_linear()) {
    return {MatmulBackend::kAten, MatmulBackend::kOneDnn};
  }
  if (dtype == at::kBFloat16 && is_x86() && processor < InstructionSet::kAvx512) return {MatmulBackend::kWidened};
  if (dtype == at::kBFloat16 && processor < InstructionSet::kAvx512Bf16) {
    return {MatmulBackend::kAten, MatmulBackend::kWidened};
  }
  if (dtype == at::kBFloat16 && has_amx_bfloat16()) return {MatmulBackend::kTiled};
  return {MatmulBackend::kAten};
}

MatmulBackend matmul_backend(at::ScalarType dtype) {
  if (dtype != at::kFloat && dtype != at::kBFloat16) return MatmulBackend::kAten;
  return chosen(dtype).load(std::memory_order_relaxed);
}

void set_matmul_backend(at::ScalarType dtype, MatmulBackend backend) {
  const bool fits =
      backend == MatmulBackend::kAten || (backend == MatmulBackend::kOneDnn && dtype == at::kFloat) ||
      ((backend == MatmulBackend::kWidened || backend == MatmulBackend::kTiled) && dtype == at::kBFloat16);
  TORCH_CHECK_VALUE(fits && (backend != MatmulBackend::kOneDnn || has_onednn_linear()), "matmul backend: products of ",
                    dtype, " by ", to_string(backend), " are not available");
  if (dtype == at::kFloat || dtype == at::kBFloat16) chosen(dtype) = backend;
}

}  // namespace tamis::ops
