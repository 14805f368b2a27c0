#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tamis/shootout/plan.h"

namespace tamis::shootout {

/// Results by the job's name; those that are missing are not done yet.
using Results = std::map<std::string, nlohmann::json>;

/// The learning rate whose run of the grid has the lowest validation loss, the mean over the sources; nothing while
/// runs of the grid are missing, or when all diverged.
std::optional<double> choose_lr(const ShootoutRecipe& recipe, size_t mixer, const Results& results);

/// True when every run of the mixer's grid is done.
bool searched(const ShootoutRecipe& recipe, size_t mixer, const Results& results);

/// All that is known, as docs/shootout.md and tamis/report/page.h describe it: shootout.json, and the report's data.
nlohmann::json summarise(const ShootoutRecipe& recipe, const Results& results);

}  // namespace tamis::shootout
