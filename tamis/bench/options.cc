#include "tamis/bench/options.h"

#include <algorithm>
#include <array>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::bench {
namespace {

const std::array<std::string, 3> kNames = {"float32", "bfloat16", "int8"};
constexpr std::array kTypes = {at::kFloat, at::kBFloat16, at::kChar};

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  return kNames[std::find(kTypes.begin(), kTypes.end(), dtype) - kTypes.begin()];
}

at::ScalarType dtype_named(const std::string& name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return kTypes[i];
  }
  throw Error(ExitCode::kUsage, unknown_name("dtype", name, kNames));
}

void refuse_int8(const std::vector<at::ScalarType>& dtypes) {
  if (std::find(dtypes.begin(), dtypes.end(), at::kChar) == dtypes.end()) return;
  fail(ExitCode::kUsage, "--dtypes: int8 is a format of weights in decoding; expected float32 or bfloat16 here");
}

}  // namespace tamis::bench
