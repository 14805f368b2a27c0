#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "tamis/shootout/recipe.h"

namespace tamis::shootout {

/// One training run, and the measurements after it.
struct Job {
  std::string name;  // "transformer/lr-0.004", "transformer/seed-1"
  size_t mixer;      // in ShootoutRecipe::mixers
  bool final;        // has the chosen learning rate and is evaluated on the tasks
  train::Recipe recipe;

  /// The run directory, as `tamis train` writes it.
  std::filesystem::path run() const { return recipe.run.dir; }
};

/// The runs of the learning rate grid, one per rate, with the first seed.
std::vector<Job> search_jobs(const ShootoutRecipe& recipe, size_t mixer);

/// The runs with the chosen learning rate, one per seed. If search_steps equals train.steps, the run of the first seed
/// is the search run.
std::vector<Job> final_jobs(const ShootoutRecipe& recipe, size_t mixer, double lr);

/// The number of jobs of all mixers.
int64_t count_jobs(const ShootoutRecipe& recipe);

}  // namespace tamis::shootout
