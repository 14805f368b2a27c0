#include "tamis/train/machine.h"

#include <ATen/ATen.h>
#include <ATen/Version.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <thread>

#include "tamis/base/terminal.h"
#include "tamis/base/version.h"
#include "tamis/ops/linear.h"

namespace tamis::train {
namespace {

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) return line.substr(colon + 2);
  }
  return "unknown";
}

}  // namespace

nlohmann::json describe_machine() {
  utsname system{};
  uname(&system);
  return {{"processor", processor_name()},
          {"instruction_set", at::get_cpu_capability()},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE)},
          {"system", std::string(system.sysname) + " " + system.release + " " + system.machine},
          {"tamis", kVersion},
          {"libtorch", TORCH_VERSION},
          {"compiler", __VERSION__}};
}

std::vector<std::string> command_line() {
  std::ifstream file("/proc/self/cmdline");
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

double measure_matmul_flops(at::ScalarType dtype, at::Device device, int64_t size, double seconds) {
  const at::NoGradGuard no_grad;
  const at::Tensor a = at::ones({size, size}, at::TensorOptions(device).dtype(dtype));
  const auto multiply = [&] { ops::linear(a, a)[0][0].item(); };  // item waits for the device
  multiply();
  double best = 1e30;
  const double start = now_seconds();
  do {
    const double before = now_seconds();
    multiply();
    best = std::min(best, now_seconds() - before);
  } while (now_seconds() - start < seconds);
  return 2.0 * std::pow(size, 3) / best;
}

}  // namespace tamis::train
