#pragma once

#include <string_view>

namespace tamis::report {

/// A file of web/, or plotly.min.js, as embedded at build time (cmake/TamisWeb.cmake); empty when there is none.
std::string_view web_file(std::string_view name);

}  // namespace tamis::report
