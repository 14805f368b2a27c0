#pragma once

#include <string>
#include <string_view>

namespace tamis::report {

/// Base64 encoding of RFC 4648, with padding.
std::string base64(std::string_view bytes);

}  // namespace tamis::report
