#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "tamis/study/functions.h"

namespace tamis::study {

/// Tasks of the LM Evaluation Harness for a run, by `python -m tamis.lm_eval` (docs/python.md).
struct LmEvalOptions {
  std::vector<std::string> tasks;  // names in the harness or in `include`
  std::string include;             // a folder of further tasks, of the working directory or next to the recipes that
                                   // come with Tamis (recipes/lm_eval); empty: none
  int64_t limit = 0;               // documents of each task; 0: all
};

/// Digest of the files in `include`, whose changes change results; empty without it. Throws ExitCode::kInput.
std::string digest_of_tasks(const LmEvalOptions& options);

/// Rows `acc`, and `acc_norm` of tasks that have it, with the column task. Throws ExitCode::kRuntime when the harness
/// fails, with its last line.
void add_lm_eval(const std::filesystem::path& run, const LmEvalOptions& options, const AddRow& add);

}  // namespace tamis::study
