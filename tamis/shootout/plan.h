#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tamis/shootout/recipe.h"

namespace tamis::shootout {

/// One training run, and whether it is measured afterwards.
struct Job {
  std::string name;  // "transformer/lr-0.004", "transformer/seed-1"
  size_t mixer;      // in ShootoutRecipe::mixers
  bool final;        // with the chosen learning rate: it is measured on the tasks
  train::Recipe recipe;

  /// The run's directory, which is that of `tamis train`.
  std::filesystem::path run() const { return recipe.run.dir; }
};

/// Runs of the grid, one for each learning rate, with the first seed.
std::vector<Job> search_jobs(const ShootoutRecipe& recipe, size_t mixer);

/// Runs with the chosen learning rate, one for each seed. Where search_steps are all steps, the first seed's is the
/// search's run.
std::vector<Job> final_jobs(const ShootoutRecipe& recipe, size_t mixer, double lr);

/// Jobs of all mixers together.
int64_t count_jobs(const ShootoutRecipe& recipe);

}  // namespace tamis::shootout
