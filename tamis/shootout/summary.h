#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "tamis/shootout/plan.h"

namespace tamis::shootout {

/// Results of finished jobs by job name.
using Results = std::map<std::string, nlohmann::json>;

/// The learning rate of the grid with the lowest validation loss (mean over the sources); none while results of the
/// grid are missing, or when all runs diverged.
std::optional<double> choose_lr(const ShootoutRecipe& recipe, size_t mixer, const Results& results);

/// True when all runs of the mixer's grid have a result.
bool searched(const ShootoutRecipe& recipe, size_t mixer, const Results& results);

/// The content of shootout.json, which is also the data of the report (docs/shootout.md, tamis/report/page.h).
nlohmann::json summarise(const ShootoutRecipe& recipe, const Results& results);

}  // namespace tamis::shootout
