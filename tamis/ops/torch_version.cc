// The LibTorch that this library was compiled for: its C++ interface is bound to that version, so the Python package
// asks before it uses the operators.

#include <torch/version.h>

extern "C" __attribute__((visibility("default"))) const char* tamis_torch_version() {
  return TORCH_VERSION;
}
