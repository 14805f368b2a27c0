// The LibTorch that this library was compiled with. Its C++ interface is that of this version only, so the Python
// package checks it before it loads the operators.

#include <torch/version.h>

extern "C" __attribute__((visibility("default"))) const char* tamis_torch_version() {
  return TORCH_VERSION;
}
