#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "tamis/study/job.h"
#include "tamis/study/recipe.h"

namespace tamis::study {

/// All jobs of a point. While nothing is chosen, the final jobs have the first option.
std::vector<Job> all_jobs(const StudyRecipe& recipe, size_t point, const Results& results);

/// What the recipe says of a point: columns, size, tokens, where it starts.
nlohmann::json describe_point(const StudyRecipe& recipe, const Point& point);

/// That and what has come of its jobs: how many are done, diverged or failed, the time, the choice.
nlohmann::json summarise_point(const StudyRecipe& recipe, size_t point, const Results& results);

}  // namespace tamis::study
