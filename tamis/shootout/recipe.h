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

/// [[mixers]]: one of the compared mixers.
struct MixerRecipe {
  std::string name;
  train::Recipe recipe;  // [model], [data], [train] overridden by the mixer's keys; lr, seed and dir are set per job
  models::ParameterCount parameters;
  std::optional<SizeFit> fit;  // the change by match = "parameters", if any
};

/// [evaluation]
struct EvaluationRecipe {
  std::vector<std::string> tasks = {};                        // default: the generated tasks of [data.sources]
  std::vector<int64_t> multiples = {1, 2, 4, 8, 16, 32, 64};  // lengths as multiples of the training length
  int64_t instances = 100;                                    // maximum per length
  int64_t cell_tokens = 65536;                                // approximate maximum per length: limits the instances
  int64_t seed = 0;
  bool expand_windows = true;  // SWE
};

struct ShootoutRecipe {
  std::filesystem::path dir;   // default: runs/<name of the file>
  std::vector<int64_t> seeds;  // default: 1
  std::vector<double> lr;      // the grid; default: train.lr
  std::string match = "none";  // "parameters": one key of each model is changed to match the first mixer's size
  int64_t search_steps = 0;    // steps of the grid's runs; default: train.steps, so that the best is a final run too
  std::vector<MixerRecipe> mixers;
  EvaluationRecipe evaluation;
  std::vector<eval::TaskEvalOptions> tasks;      // the options of [evaluation] for each task
  std::map<std::string, std::string> checksums;  // of the texts in [data.sources]
  std::string toml;                              // the text of the file, with the overrides as comments
};

/// The largest allowed relative difference of two mixers' numbers of parameters without the embedding.
inline constexpr double kMostDifference = 0.02;

/// Reads a recipe and its texts and checks every mixer and every length of every task before anything runs. Throws
/// ExitCode::kUsage with file:line, also when mixers differ in size by more than kMostDifference; the text then names
/// values that fit.
ShootoutRecipe load_shootout(const std::filesystem::path& file, std::span<const std::string> overrides = {});

}  // namespace tamis::shootout
