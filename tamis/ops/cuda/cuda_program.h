#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace tamis::ops {

/// The macros that a program is compiled with.
using CudaMacros = std::map<std::string, int64_t>;

struct CudaGrid {
  std::array<int64_t, 3> blocks;
  int64_t threads;           // of a block
  int64_t shared_bytes = 0;  // of a block, besides what the kernel declares
};

/// CUDA C++ that is compiled when it is first used, for the device at hand, by the compiler that LibTorch brings for
/// its own kernels (NVRTC). So a build needs no CUDA, and the same library runs without a GPU.
class CudaProgram {
 public:
  /// `source` must outlive the program. Names are those of `extern "C"` kernels.
  CudaProgram(const char* name, const char* source);
  ~CudaProgram();
  CudaProgram(const CudaProgram&) = delete;
  CudaProgram& operator=(const CudaProgram&) = delete;

  /// Whether there are CUDA's driver and compiler, and the program compiles for this device; warns if not,
  /// once for each device and set of macros.
  bool works(c10::Device device, const CudaMacros& macros);

  /// Launches a kernel on the device's current stream. Arguments are those of the kernel: numbers, structs of numbers
  /// and pointers to memory of the device. Throws c10::Error when CUDA refuses it.
  template <typename... Arguments>
  void launch(c10::Device device, const CudaMacros& macros, const char* kernel, const CudaGrid& grid,
              Arguments... arguments) {
    std::vector<void*> pointers = {static_cast<void*>(&arguments)...};
    launch_with(device, macros, kernel, grid, pointers.data());
  }

 private:
  struct Impl;
  void launch_with(c10::Device device, const CudaMacros& macros, const char* kernel, const CudaGrid& grid,
                   void** arguments);

  std::unique_ptr<Impl> impl_;
};

}  // namespace tamis::ops
