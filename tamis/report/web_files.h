#pragma once

#include <string_view>

namespace tamis::report {

/// A file of web/, or plotly.min.js, embedded at build time (cmake/TamisWeb.cmake); empty for an unknown name.
std::string_view web_file(std::string_view name);

}  // namespace tamis::report
