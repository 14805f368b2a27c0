#include "tamis/cli/study_options.h"

#include <fmt/format.h>

#include <cstdio>

#include "tamis/cli/values.h"
#include "tamis/study/study.h"

namespace tamis::cli {

void add_study_options(CLI::App& command, study::StudyOptions& options, RunOptions& run) {
  command.add_option("--set", options.overrides, "Change a key of the recipe, as table.key=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  command
      .add_option("--tier", options.tier,
                  "cpu, or gpu or paper if the recipe has them: larger, with sizes of the paper")
      ->type_name("TIER")
      ->capture_default_str();
  command.add_flag("--plan", options.plan, "Only list the runs, the sizes of the models and the work");
  add_number(command, "--jobs", options.jobs,
             "Number of runs at the same time, each with an equal share of the threads");
  add_json_option(command, options.json);
  add_run_options(command, run);
}

void set_threads(study::StudyOptions& options, const RunOptions& run) {
  check_options(run);
  if (run.threads > 0) options.overrides.push_back(fmt::format("train.threads={}", run.threads));
}

void run_study(study::StudyOptions options, const RunOptions& run) {
  set_threads(options, run);
  study::check_options(options);
  fmt::print("{}", study::run_study(options, start(run), stderr));
}

}  // namespace tamis::cli
