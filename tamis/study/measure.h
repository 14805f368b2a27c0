#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <nlohmann/json.hpp>

#include "tamis/study/job.h"
#include "tamis/study/recipe.h"
#include "tamis/study/table.h"
#include "tamis/train/stop_signals.h"

namespace tamis::study {

/// The evaluations of a job, with every setting that has an influence on its rows.
nlohmann::json describe(const StudyRecipe& study, const Job& job);

/// All rows of a trained job (docs/studies.md lists the metrics); of a job of [choose], its search_loss. `trained` has
/// the seconds and tokens of the training.
Rows measure(const StudyRecipe& study, const Job& job, const nlohmann::json& trained, at::Device device,
             std::FILE* messages, const train::StopSignals& signals);

/// The rows of a job whose training diverged.
Rows diverged_rows(const StudyRecipe& study, const Job& job);

}  // namespace tamis::study
