#pragma once

#include <c10/core/Device.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tamis/study/recipe.h"
#include "tamis/study/table.h"
#include "tamis/train/stop_signals.h"

namespace tamis::study {

/// A model to train and to measure.
struct Job {
  std::string name;  // "sieve/seed-1", "sieve/lr-0.01"; the name of a chosen run has no value of [choose]
  size_t point;      // in StudyRecipe::points
  size_t option;     // in Point::options
  bool search;       // a short run for [choose], of which only the validation loss is measured
  int64_t seed = 1;
  train::Recipe recipe;  // with its seed and directory; empty in a study without [model]
  std::string after;     // the job whose run it starts from; empty: none

  std::filesystem::path directory;  // as `tamis train` writes it, and result.json or search.json
};

/// Results of finished jobs by job name. A result is
///
///   status    "done", or "diverged" or "failed" with a reason
///   seconds, tokens, threads    of the steps of the training; processor_seconds    of the training with its set-up,
///                               validations and checkpoints
///   job_seconds                 of the steps, or of this process's training as a whole, and of measuring
///   job_processor_seconds       of training and measuring. Both processor times are null when they are not known: the
///                               training was resumed, or an earlier result lacks them
///   rows      measured values (table.h)
///   recipe, checksums, start, question, version, commit    what was run; `start`: what the run was that it starts from
using Results = std::map<std::string, nlohmann::json>;

/// Of all jobs together; null when it is not known of one of them.
nlohmann::json processor_seconds_of(const Results& results);

/// The numbers of threads that jobs had, in ascending order, each once; null when it is not known of one of them.
nlohmann::json threads_of(const Results& results);

/// The short runs of [choose], with the first seed; none without it.
std::vector<Job> search_jobs(const StudyRecipe& recipe, size_t point);

/// The runs of one option, one per seed. A study without [model] has one job per point.
std::vector<Job> final_jobs(const StudyRecipe& recipe, size_t point, size_t option);

/// Whether a result is neither diverged nor failed.
bool is_done(const nlohmann::json& result);

/// Removes the stored result of a job that failed, so that it is tried again.
void forget_failure(const StudyRecipe& study, const Job& job);

/// The option with the lowest validation loss; none while results are missing, or when no run is done.
std::optional<size_t> chosen_option(const StudyRecipe& recipe, size_t point, const Results& results);

/// "smallest" or "largest" when the option's value is that of at least three numbers, so that a better one may lie
/// beyond; else empty.
std::string edge_of(const Point& point, size_t option);

/// True when all runs of [choose] have a result for this point.
bool searched(const StudyRecipe& recipe, size_t point, const Results& results);

/// search.json or result-ID.json in the job's directory. Studies that share runs share search.json.
std::filesystem::path result_file(const StudyRecipe& study, const Job& job);

/// The stored result of a finished job; none when there is none, or when it was measured with other settings or by
/// another version. Throws ExitCode::kUsage when it belongs to another recipe or to other texts.
std::optional<nlohmann::json> finished(const StudyRecipe& recipe, const Job& job);

/// Trains the job's model, resuming an interrupted run, measures it and stores the result. Throws what train() throws,
/// but for kDiverged, kRuntime and exceptions of LibTorch such as a lack of memory, which are results; kHangup,
/// kInterrupt and kTerminate also when a signal was received while it measured.
nlohmann::json run_job(const StudyRecipe& recipe, const Job& job, at::Device device, std::FILE* messages,
                       const train::StopSignals& signals);

/// Throws kHangup, kInterrupt or kTerminate when one of the signals was received.
void stop_if_asked(const std::string& what, const train::StopSignals& signals);

}  // namespace tamis::study
