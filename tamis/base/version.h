#pragma once

namespace tamis {

inline constexpr const char* kVersion = "0.1.0";

}  // namespace tamis
