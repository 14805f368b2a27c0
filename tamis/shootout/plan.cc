#include "tamis/shootout/plan.h"

#include <fmt/format.h>

#include <cmath>

namespace tamis::shootout {
namespace {

/// Runs with another number of steps have their own directory and a proportionally shorter warm-up.
train::Recipe run_recipe(const ShootoutRecipe& shootout, size_t mixer, double lr, int64_t seed, int64_t steps) {
  train::Recipe recipe = shootout.mixers[mixer].recipe;
  const int64_t all_steps = recipe.train.steps;
  recipe.train.lr = lr;
  recipe.train.seed = seed;
  recipe.train.steps = steps;
  if (steps != all_steps) {
    recipe.train.warmup_steps = static_cast<int64_t>(std::llround(
        static_cast<double>(recipe.train.warmup_steps) * static_cast<double>(steps) / static_cast<double>(all_steps)));
  }
  const std::string part = steps == all_steps ? "" : fmt::format("-steps-{}", steps);
  recipe.run.dir =
      (shootout.dir / shootout.mixers[mixer].name / fmt::format("lr-{}-seed-{}{}", lr, seed, part)).string();
  return recipe;
}

}  // namespace

std::vector<Job> search_jobs(const ShootoutRecipe& recipe, size_t mixer) {
  std::vector<Job> jobs;
  for (const double lr : recipe.lr) {
    jobs.push_back({.name = fmt::format("{}/lr-{}", recipe.mixers[mixer].name, lr),
                    .mixer = mixer,
                    .final = false,
                    .recipe = run_recipe(recipe, mixer, lr, recipe.seeds.front(), recipe.search_steps)});
  }
  return jobs;
}

std::vector<Job> final_jobs(const ShootoutRecipe& recipe, size_t mixer, double lr) {
  std::vector<Job> jobs;
  for (const int64_t seed : recipe.seeds) {
    const int64_t steps = recipe.mixers[mixer].recipe.train.steps;
    jobs.push_back({.name = fmt::format("{}/seed-{}", recipe.mixers[mixer].name, seed),
                    .mixer = mixer,
                    .final = true,
                    .recipe = run_recipe(recipe, mixer, lr, seed, steps)});
  }
  return jobs;
}

int64_t count_jobs(const ShootoutRecipe& recipe) {
  return static_cast<int64_t>(recipe.mixers.size() * (recipe.lr.size() + recipe.seeds.size()));
}

}  // namespace tamis::shootout
