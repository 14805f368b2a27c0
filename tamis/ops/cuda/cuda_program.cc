#include "tamis/ops/cuda/cuda_program.h"

#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <dlfcn.h>

#include <mutex>
#include <string_view>
#include <tuple>

namespace tamis::ops {
namespace {

// The functions of CUDA's driver and of NVRTC that are used; their declarations are those of CUDA 12 and 13.
using Handle = void*;
constexpr int kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76, kMaxDynamicSharedBytes = 8;

struct Functions {
  int (*cuCtxGetCurrent)(Handle*);
  int (*cuDevicePrimaryCtxRetain)(Handle*, int);
  int (*cuCtxSetCurrent)(Handle);
  int (*cuDeviceGet)(int*, int);
  int (*cuDeviceGetAttribute)(int*, int, int);
  int (*cuModuleLoadData)(Handle*, const void*);
  int (*cuModuleGetFunction)(Handle*, Handle, const char*);
  int (*cuFuncSetAttribute)(Handle, int, int);
  int (*cuLaunchKernel)(Handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Handle, void**,
                        void**);
  int (*cuGetErrorString)(int, const char**);
  int (*nvrtcCreateProgram)(Handle*, const char*, const char*, int, const char* const*, const char* const*);
  int (*nvrtcDestroyProgram)(Handle*);
  int (*nvrtcCompileProgram)(Handle, int, const char* const*);
  int (*nvrtcGetProgramLogSize)(Handle, size_t*);
  int (*nvrtcGetProgramLog)(Handle, char*);
  int (*nvrtcGetCUBINSize)(Handle, size_t*);
  int (*nvrtcGetCUBIN)(Handle, char*);
};

/// LibTorch's link to both libraries, which is next to the others; null where it is not.
Handle open_library() {
  constexpr const char* kName = "libcaffe2_nvrtc.so";
  Dl_info torch;
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &torch) != 0 && torch.dli_fname) {
    const std::string file = torch.dli_fname;
    Handle library = dlopen((file.substr(0, file.rfind('/') + 1) + kName).c_str(), RTLD_LAZY | RTLD_LOCAL);
    if (library) return library;
  }
  return dlopen(kName, RTLD_LAZY | RTLD_LOCAL);
}

/// Null where they are not.
const Functions* functions() {
  static const std::unique_ptr<const Functions> kFunctions = []() -> std::unique_ptr<const Functions> {
    Handle library = open_library();
    if (!library) return nullptr;
    auto found = std::make_unique<Functions>();
    bool complete = true;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      complete = complete && function;
    };
#define TAMIS_FIND(name) find(found->name, #name)
    TAMIS_FIND(cuCtxGetCurrent);
    TAMIS_FIND(cuDevicePrimaryCtxRetain);
    TAMIS_FIND(cuCtxSetCurrent);
    TAMIS_FIND(cuDeviceGet);
    TAMIS_FIND(cuDeviceGetAttribute);
    TAMIS_FIND(cuModuleLoadData);
    TAMIS_FIND(cuModuleGetFunction);
    TAMIS_FIND(cuFuncSetAttribute);
    TAMIS_FIND(cuLaunchKernel);
    TAMIS_FIND(cuGetErrorString);
    TAMIS_FIND(nvrtcCreateProgram);
    TAMIS_FIND(nvrtcDestroyProgram);
    TAMIS_FIND(nvrtcCompileProgram);
    TAMIS_FIND(nvrtcGetProgramLogSize);
    TAMIS_FIND(nvrtcGetProgramLog);
    TAMIS_FIND(nvrtcGetCUBINSize);
    TAMIS_FIND(nvrtcGetCUBIN);
#undef TAMIS_FIND
    return complete ? std::move(found) : nullptr;
  }();
  return kFunctions.get();
}

void check(int result, const char* what) {
  if (result == 0) return;
  const char* text = nullptr;
  functions()->cuGetErrorString(result, &text);
  TORCH_CHECK(false, "CUDA: ", what, ": ", text ? text : "error ", text ? "" : std::to_string(result));
}

int attribute(c10::Device device, int which) {
  const Functions& cuda = *functions();
  int number = 0, value = 0;
  check(cuda.cuDeviceGet(&number, std::max<int>(device.index(), 0)), "cuDeviceGet");
  check(cuda.cuDeviceGetAttribute(&value, which, number), "cuDeviceGetAttribute");
  return value;
}

/// Threads that have not used the device yet have no context.
void have_context(c10::Device device) {
  const Functions& cuda = *functions();
  Handle context = nullptr;
  check(cuda.cuCtxGetCurrent(&context), "cuCtxGetCurrent");
  if (context) return;
  int number = 0;
  check(cuda.cuDeviceGet(&number, std::max<int>(device.index(), 0)), "cuDeviceGet");
  check(cuda.cuDevicePrimaryCtxRetain(&context, number), "cuDevicePrimaryCtxRetain");
  check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

/// Machine code of the source for this device. Throws c10::Error with what the compiler says.
std::string compiled(const char* name, const char* source, c10::Device device, const CudaMacros& macros) {
  const Functions& cuda = *functions();
  const int major = attribute(device, kComputeCapabilityMajor), minor = attribute(device, kComputeCapabilityMinor);
  std::vector<std::string> options = {"--std=c++17", c10::str("--gpu-architecture=sm_", major, minor)};
  for (const auto& [macro, value] : macros) options.push_back(c10::str("-D", macro, "=", value));
  std::vector<const char*> arguments;
  for (const std::string& option : options) arguments.push_back(option.c_str());

  Handle program = nullptr;
  TORCH_CHECK(cuda.nvrtcCreateProgram(&program, source, name, 0, nullptr, nullptr) == 0, "NVRTC: cannot begin ", name);
  std::string code, log;
  size_t size = 0;
  const int failed = cuda.nvrtcCompileProgram(program, static_cast<int>(arguments.size()), arguments.data());
  if (cuda.nvrtcGetProgramLogSize(program, &size) == 0) {
    log.resize(size);
    cuda.nvrtcGetProgramLog(program, log.data());
  }
  if (!failed && cuda.nvrtcGetCUBINSize(program, &size) == 0) {
    code.resize(size);
    cuda.nvrtcGetCUBIN(program, code.data());
  }
  cuda.nvrtcDestroyProgram(&program);
  TORCH_CHECK(!code.empty(), "NVRTC: ", name, " does not compile for sm_", major, minor, ": ", log);
  return code;
}

}  // namespace

struct CudaProgram::Impl {
  using Key = std::tuple<int, CudaMacros>;

  const char* name;
  const char* source;
  std::mutex mutex;
  std::map<Key, Handle> modules;  // null: it does not work
  std::map<std::pair<Handle, std::string>, Handle> kernels;

  Handle module_of(c10::Device device, const CudaMacros& macros) {
    const Key key{std::max<int>(device.index(), 0), macros};
    if (const auto known = modules.find(key); known != modules.end()) return known->second;
    Handle& module = modules[key];
    try {
      if (at::hasHIP()) return module;  // its devices are called cuda, too
      if (!functions()) {
        TORCH_WARN("CUDA's driver or its compiler, NVRTC, was not found: ", name, " runs in plain torch, more slowly");
        return module;
      }
      have_context(device);
      const std::string code = compiled(name, source, device, macros);
      check(functions()->cuModuleLoadData(&module, code.data()), "cuModuleLoadData");
    } catch (const c10::Error& error) {
      module = nullptr;
      TORCH_WARN(error.what_without_backtrace(), "; ", name, " runs in plain torch, more slowly");
    }
    return module;
  }

  Handle kernel_of(Handle module, const char* kernel, int64_t shared_bytes) {
    Handle& function = kernels[{module, kernel}];
    if (!function) {
      check(functions()->cuModuleGetFunction(&function, module, kernel), kernel);
    }
    constexpr int64_t kDefaultSharedBytes = 48 * 1024 - 16 * 1024;  // less what a kernel may declare
    if (shared_bytes > kDefaultSharedBytes) {
      check(functions()->cuFuncSetAttribute(function, kMaxDynamicSharedBytes, static_cast<int>(shared_bytes)), kernel);
    }
    return function;
  }
};

CudaProgram::CudaProgram(const char* name, const char* source) : impl_(new Impl{.name = name, .source = source}) {}

CudaProgram::~CudaProgram() = default;

bool CudaProgram::works(c10::Device device, const CudaMacros& macros) {
  const c10::DeviceGuard guard(device);
  const std::scoped_lock lock(impl_->mutex);
  return impl_->module_of(device, macros) != nullptr;
}

void CudaProgram::launch_with(c10::Device device, const CudaMacros& macros, const char* kernel, const CudaGrid& grid,
                              void** arguments) {
  const auto& [blocks, threads, shared_bytes] = grid;
  if (blocks[0] == 0 || blocks[1] == 0 || blocks[2] == 0) return;
  const c10::DeviceGuard guard(device);
  Handle function = nullptr;
  {
    const std::scoped_lock lock(impl_->mutex);
    Handle module = impl_->module_of(device, macros);
    TORCH_CHECK(module, impl_->name, ": not compiled for this device");
    function = impl_->kernel_of(module, kernel, shared_bytes);
  }
  have_context(device);
  const c10::Stream stream = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  check(functions()->cuLaunchKernel(function, static_cast<unsigned>(blocks[0]), static_cast<unsigned>(blocks[1]),
                                    static_cast<unsigned>(blocks[2]), static_cast<unsigned>(threads), 1, 1,
                                    static_cast<unsigned>(shared_bytes), stream.native_handle(), arguments, nullptr),
        kernel);
}

}  // namespace tamis::ops
