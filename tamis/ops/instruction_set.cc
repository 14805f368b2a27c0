// Applies TAMIS_MAX_ISA when the operators are loaded, before any of them runs.

#include "tamis/base/instruction_set.h"

#include <cstdio>

#include "tamis/base/error.h"
#include "tamis/kernels/instruction_set.h"

namespace tamis::ops {
namespace {

/// A library cannot refuse to be loaded: an error is printed, and nothing is restricted.
bool prepare() try {
  prepare_backends();
  return kernels::restrict_targets();
} catch (const Error& error) {
  std::fprintf(stderr, "tamis: %s\n", error.what());
  return false;
}

[[maybe_unused]] const bool prepared = prepare();

}  // namespace
}  // namespace tamis::ops
