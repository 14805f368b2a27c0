#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace tamis::shootout {

/// The result of `summarise` as Markdown tables: losses and costs, losses by position, then one table per task; then a
/// line for each mixer whose learning rate is at the edge of the grid.
std::string to_markdown(const nlohmann::json& summary);

}  // namespace tamis::shootout
