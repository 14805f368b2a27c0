#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tamis::shootout {

/// What `summarise` found as Markdown tables: losses and costs, then one for each task; then a line for each mixer
/// whose learning rate is at the edge of the grid.
std::string to_markdown(const nlohmann::json& summary);

}  // namespace tamis::shootout
