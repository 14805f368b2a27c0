#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tamis/eval/options.h"
#include "tamis/models/model.h"
#include "tamis/shootout/match.h"
#include "tamis/train/recipe.h"

namespace tamis::shootout {

/// [[mixers]]: one of those compared.
struct MixerRecipe {
  std::string name;
  train::Recipe recipe;  // [model], [data] and [train] with the mixer's own keys over them; lr, seed and dir: of no run
  models::ParameterCount parameters;
  std::optional<SizeFit> fit;  // what match = "parameters" changed
};

/// [evaluation]
struct EvaluationRecipe {
  std::vector<std::string> tasks = {};                        // default: the generated ones among [data.sources]
  std::vector<int64_t> multiples = {1, 2, 4, 8, 16, 32, 64};  // lengths, as multiples of those trained
  int64_t instances = 100;                                    // of a length, at most
  int64_t cell_tokens = 65536;                                // of a length: fewer instances when they are long
  int64_t seed = 0;
  bool expand_windows = true;  // SWE
};

struct ShootoutRecipe {
  std::filesystem::path dir;   // default: runs/<name of the file>
  std::vector<int64_t> seeds;  // default: 1
  std::vector<double> lr;      // the grid; default: train.lr alone
  std::string match = "none";  // "parameters": mixers get the size of the first by one key of their model each
  int64_t search_steps = 0;    // of a run of the grid; default: train.steps, so that the best is the first seed's run
  std::vector<MixerRecipe> mixers;
  EvaluationRecipe evaluation;
  std::vector<eval::TaskEvalOptions> tasks;      // [evaluation], for each of its tasks
  std::map<std::string, std::string> checksums;  // of the texts among [data.sources]
  std::string toml;                              // as it was read, changes included
};

/// Largest difference of two mixers' parameters, the embedding not counted, as a share of the smaller.
inline constexpr double kMostDifference = 0.02;

/// Reads a recipe and its texts, and checks all of it, every mixer and every length of every task, before anything
/// runs. Throws ExitCode::kUsage with file:line, also when mixers differ in size by more than kMostDifference; the text
/// names the values that would fit.
ShootoutRecipe load_shootout(const std::filesystem::path& file, std::span<const std::string> overrides = {});

}  // namespace tamis::shootout
