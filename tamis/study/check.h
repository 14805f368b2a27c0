#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/study/recipe.h"
#include "tamis/study/table.h"

namespace tamis::study {

/// Whether this version still gives what studies of the first tier have stored, so that only those that it changes have
/// to run again. Of a study one model is trained and measured once more, from the first seed: the one whose runs took
/// least time, as it was chosen then. Its values are compared with the stored ones of the same seed.
///
/// Without `id` this is done with every study that has a result. Returns
///
///   {"studies": [{"id", "run", "same", "differences", "reason", "version"}]}
///
/// version: the commit that made the stored result. same: null when nothing could be compared; reason says why. The
/// outcome is noted in study.json as "check", for the book. Throws like run_job, and kUsage or kInput when the study
/// with that id cannot be checked.
nlohmann::json check_studies(const std::string& id, const std::vector<std::string>& overrides, at::Device device,
                             std::FILE* messages);

/// The same as a table.
std::string checks_to_table(const nlohmann::json& checks);

/// The ids of studies whose results differ.
std::vector<std::string> differing(const nlohmann::json& checks);

/// What differs between the rows of one run and the stored rows of its seed, by metric: "score 0.4, was 0.98". Compared
/// are the means over everything else; not those of times, and not curves. Values of a seed are the same within 2%,
/// within 0.02, and within the spread of the stored seeds: rounding, which differs between processors, moves a run as
/// far. Values without a seed are the same within 0.1%.
std::vector<std::string> differences(const Rows& now, const Rows& stored, const Columns& columns);

}  // namespace tamis::study
