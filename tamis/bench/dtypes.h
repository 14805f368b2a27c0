#pragma once

#include <c10/core/ScalarType.h>

#include <string>
#include <vector>

namespace tamis::bench {

/// "float32", "bfloat16", or "int8" (at::kChar): weights of decoding only.
std::string dtype_name(at::ScalarType dtype);

/// The inverse, of names that check_options accepts.
std::vector<at::ScalarType> dtypes_named(const std::vector<std::string>& names);

}  // namespace tamis::bench
