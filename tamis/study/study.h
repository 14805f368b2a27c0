#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "tamis/study/options.h"

namespace tamis::study {

/// Runs or resumes a study. Several processes, also on several machines with a shared disk, may run the same study at
/// once: each job is locked by the process that runs it. Writes into the study's directory, after every job:
///
///   POINT/RUN/result-ID.json     runs, as `tamis train` leaves them, and their results; in study.runs if that is given
///   results.csv, results.json    the table of results (table.h): one row per measured value
///   study.json                   the study, its points, jobs and claims with verdicts, without the rows
///   figures/ID.svg, .pdf         at the end
///   report.html, report.md       the page of the study
///   claims.json                  the claims as they were when the first job began, and later changes
///
/// Returns report.md or, with options.json, study.json in one line; with options.plan the list of jobs. Throws like
/// load_study and train(), except that a diverged run is a result.
std::string run_study(const StudyOptions& options, at::Device device, std::FILE* messages);

}  // namespace tamis::study
