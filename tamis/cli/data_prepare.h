#pragma once

#include <CLI/CLI.hpp>

namespace tamis::cli {

/// `tamis data prepare`.
void add_data_prepare(CLI::App& data);

}  // namespace tamis::cli
