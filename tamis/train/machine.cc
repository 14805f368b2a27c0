#include "tamis/train/machine.h"

#include <ATen/ATen.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <fmt/chrono.h>
#include <fmt/ranges.h>
#include <sys/utsname.h>
#include <torch/version.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "tamis/base/instruction_set.h"
#include "tamis/base/terminal.h"
#include "tamis/base/version.h"
#include "tamis/ops/linear.h"
#include "tamis/ops/matmul_backend.h"

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

int64_t device_count(at::DeviceType type) {
  const auto* devices = c10::impl::device_guard_impl_registry[static_cast<size_t>(type)].load();
  return devices ? devices->deviceCount() : 0;
}

nlohmann::json describe_machine() {
  utsname system{};
  uname(&system);
  return {{"processor", processor_name()},
          {"instruction_set", to_string(instruction_set())},
          {"matmul", describe_numerics()["matmul"]},
          {"cores", std::thread::hardware_concurrency()},
          {"memory_bytes", static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGE_SIZE)},
          {"system", std::string(system.sysname) + " " + system.release + " " + system.machine},
          {"tamis", kVersion},
          {"libtorch", TORCH_VERSION},
          {"compiler", __VERSION__}};
}

nlohmann::json describe_numerics() {
  return {{"instruction_set", to_string(instruction_set())},
          {"matmul",
           {{"float32", to_string(ops::matmul_backend(at::kFloat))},
            {"bfloat16", to_string(ops::matmul_backend(at::kBFloat16))}}}};
}

std::string restore_numerics(const nlohmann::json& recorded) {
  const auto text = [&recorded](const char* pointer) {
    const nlohmann::json value = recorded.value(nlohmann::json::json_pointer(pointer), nlohmann::json());
    return value.is_string() ? value.get<std::string>() : std::string();
  };
  if (!recorded.is_object() || recorded.empty()) return "";  // an earlier version did not record it
  std::vector<std::string> differences;
  const std::string before = text("/instruction_set"), now = to_string(instruction_set());
  if (before != now) differences.push_back(fmt::format("the instruction set was {}, is {}", before, now));
  for (const auto& [name, dtype] : {std::pair("float32", at::kFloat), std::pair("bfloat16", at::kBFloat16)}) {
    const std::string wanted = text(fmt::format("/matmul/{}", name).c_str());
    for (const ops::MatmulBackend backend : ops::matmul_backends(dtype)) {
      if (to_string(backend) == wanted) ops::set_matmul_backend(dtype, backend);
    }
    const std::string found = to_string(ops::matmul_backend(dtype));
    if (found != wanted) {
      differences.push_back(fmt::format("the matmul backend of {} was {}, is {}", name, wanted, found));
    }
  }
  return fmt::format("{}", fmt::join(differences, "; "));
}

std::string fastest_precision(at::Device device) {
  if (!device.is_cpu()) return "bfloat16";
  return instruction_set() >= InstructionSet::kAvx512Bf16 ? "bfloat16" : "float32";
}

at::ScalarType compute_dtype(const std::string& precision) {
  if (precision == "float16") return at::kHalf;
  return precision == "bfloat16" ? at::kBFloat16 : at::kFloat;
}

std::string utc_now() {
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr)));
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
  const auto multiply = [&] { ops::linear(a, a)[0][0].item(); };  // item() synchronises with the device
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
