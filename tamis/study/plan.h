#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "tamis/study/job.h"
#include "tamis/study/recipe.h"

namespace tamis::study {

/// {"id", "dir", "tier", "jobs", "tokens", "flops", "points"}: the jobs of a study, and the tokens and floating-point
/// operations of their training, all of them, whether or not they are done. A point has describe_point, the names of
/// its "jobs" and its "flops".
nlohmann::json plan_study(const StudyRecipe& recipe, const std::string& tier, const Results& results);

/// What `--plan` prints: the sums, then every point with its jobs.
std::string plan_text(const nlohmann::json& plan);

/// `24 jobs, models of 4.13M to 1.31G parameters, 6.6T tokens, 1.82e+22 floating-point operations, 503 days at the
/// machine's peak`, as far as a study has them. `peak_flops` is that of matrix products, in FLOP/s.
std::string planned_work(const nlohmann::json& plan, double peak_flops);

}  // namespace tamis::study
