#include "tamis/bench/dtypes.h"

#include <array>
#include <utility>

#include "tamis/base/error.h"

namespace tamis::bench {
namespace {

constexpr std::array<std::pair<const char*, at::ScalarType>, 3> kDtypes = {
    {{"float32", at::kFloat}, {"bfloat16", at::kBFloat16}, {"int8", at::kChar}}};

}  // namespace

std::string dtype_name(at::ScalarType dtype) {
  for (const auto& [name, each] : kDtypes) {
    if (each == dtype) return name;
  }
  TAMIS_ASSERT(false);
  return "";
}

std::vector<at::ScalarType> dtypes_named(const std::vector<std::string>& names) {
  std::vector<at::ScalarType> dtypes;
  for (const std::string& wanted : names) {
    for (const auto& [name, dtype] : kDtypes) {
      if (name == wanted) dtypes.push_back(dtype);
    }
  }
  TAMIS_ASSERT(dtypes.size() == names.size());
  return dtypes;
}

}  // namespace tamis::bench
