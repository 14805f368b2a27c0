#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tamis/eval/options.h"
#include "tamis/models/model.h"
#include "tamis/study/lm_eval.h"
#include "tamis/study/match.h"
#include "tamis/train/recipe.h"
#include "tamis/train/toml.h"

namespace tamis::study {

/// Columns of the table of results and their values: {"variant": "sieve", "length": 512}.
using Columns = nlohmann::json;

/// The last part of a key such as `train.lr`, which names its column.
inline std::string last_part(const std::string& key) {
  return key.substr(key.rfind('.') + 1);
}

/// [choose]: the value of one key that each point of the study gets, by the lowest validation loss of short runs.
struct Choose {
  std::string key;  // "train.lr"
  std::vector<nlohmann::json> values;
  int64_t steps = 0;  // of the short runs, whose warm-up is shorter in proportion; 0: train.steps

  std::string column() const { return last_part(key); }  // "lr"
};

/// A recipe that [choose] may choose. Its seed and directory are set for each run.
struct Option {
  nlohmann::json value;  // of choose.key; null without [choose]
  train::Recipe recipe;
};

/// `start_from` of a variant: each run begins with a checkpoint of the run of another point with the same seed.
struct Start {
  size_t point = 0;  // in StudyRecipe::points, with the same values of the axes; an earlier one
  int64_t step = 0;  // of the checkpoint; the last one of that run, if the recipe names none
};

/// A model, its data and its training: one of [[variants]] with one value of each of [[axes]].
struct Point {
  std::string name;             // "multiscreen", "multiscreen/lr-0.01_size-4"; also a directory
  Columns columns;              // variant, its labels, and the axes
  std::vector<Option> options;  // one for each value of [choose], or one; none without [model]
  std::optional<Start> start;   // its recipes have a train.start_from, which is set for each run
  models::ParameterCount parameters;
  std::optional<SizeFit> fit;                    // the change by match = "parameters", if any
  std::map<std::string, std::string> checksums;  // of the texts in [data.sources]

  const train::Recipe& recipe() const { return options.front().recipe; }
};

/// One of [[evaluations]]: what is measured of every trained model.
struct Evaluation {
  std::string kind;  // one of evaluation_kinds()
  eval::TaskEvalOptions task;
  int64_t checkpoint_length = 0;      // kind task: > 0: also measure the checkpoint that is best at this length
  std::vector<int64_t> lengths = {};  // kinds costs, speed, relevance: of the text; loss: of the windows
  int64_t heads = 0;                  // kind relevance: how many
  std::vector<std::string> files;     // kind loss: text files, folders of them, or patterns
  std::vector<std::string> texts;     // the files that these name; empty in a plan
  eval::LossEvalOptions loss;         // kind loss: of each length
  std::string digest;                 // of those files, the haystack, or the tasks' files of lm_eval; empty in a plan
  LmEvalOptions lm_eval;              // kind lm_eval
  std::string name;                   // kind function: its name; kind parameters: a pattern of tensor names
  nlohmann::json settings = nlohmann::json::object();  // kind function: lists of values by name
  std::vector<bool> expand_windows = {};               // SWE; each value is measured
  std::vector<nlohmann::json> changes = {};            // of the model's configuration; each is measured
  nlohmann::json where = nlohmann::json::object();     // only points with these columns
};

/// [[claims]]: a statement of a paper as a comparison with a margin, written before the run.
struct Claim {
  std::string id;
  std::string text;                                // "Multiscreen needs fewer parameters for the same loss"
  std::string paper;                               // the paper's figure with its source: "40% fewer (section 4.2)"
  std::string metric;                              // a metric of the table
  std::string statistic;                           // one of claim_statistics()
  nlohmann::json of = nlohmann::json::object();    // rows of the first group
  nlohmann::json than = nlohmann::json::object();  // rows of the second group
  bool paired = false;                             // seeds are resampled together in both groups
  std::string x;                      // slope, gap, r_squared, upper_x: the column or metric of the abscissa
  std::optional<double> within;       // upper_x: how far above its least value the metric may be
  std::string best_over;              // a column: the best of its values counts
  std::string best = "highest";       // or "lowest"
  std::optional<double> above;        // counts the values above: 1 for each, else 0
  std::optional<double> seeds_above;  // counts the seeds with a mean above: 1 for each, else 0
  std::optional<double> at_least;     // the claim holds if the statistic is at least this
  std::optional<double> at_most;
  std::vector<std::string> needs;  // earlier claims without which this one says nothing
  nlohmann::json stated;           // as in the file, to notice changes
};

/// [equal]: what all points must have in common.
struct EqualRule {
  std::optional<double> parameters_without_embedding;  // largest relative difference
  bool tokens = true;                                  // tokens_read()
  std::string within;                                  // a column: equal among the points with the same value of it
  bool match = false;                                  // change one key of each model to make the sizes equal
};

struct StudyRecipe {
  std::string id;  // the recipe's name
  std::string title;
  std::string question;
  std::string paper;                     // "Screening Is Enough (arXiv ...), figure 5"
  std::vector<std::string> assumptions;  // what the paper leaves open and what differs from it
  bool train = true;                     // false: nothing is trained
  bool model = true;                     // false: there is no [model]; only functions are evaluated
  std::filesystem::path dir;             // of the report; default: runs/<id>
  std::filesystem::path runs;            // of the training runs, which studies may share; default: dir
  std::string prepare;                   // the command that makes the texts of the recipe
  std::vector<int64_t> seeds = {1};
  std::optional<Choose> choose;
  EqualRule equal;
  std::vector<Point> points;
  std::vector<Evaluation> evaluations;
  std::vector<Claim> claims;
  nlohmann::json figures = nlohmann::json::array();  // checked; draw_figures.py reads them
  nlohmann::json tables = nlohmann::json::array();   // [{metric, rows, columns, where, title}]
  std::string toml;                                  // the text of the file, with the overrides as comments
};

/// The digests of the texts that the evaluations read, in their order; empty for those that read none.
std::vector<std::string> evaluation_texts(const StudyRecipe& study);

/// Steps that the runs of a point make, without those that they take over with train.start_state = "all".
int64_t own_steps(const Point& point);

/// The steps before the start of such runs; 0 for others.
int64_t steps_taken_over(const Point& point);

/// Tokens that the models of a point have read in the end, those before `start_from` included.
int64_t tokens_read(const StudyRecipe& study, const Point& point);

std::vector<std::string> evaluation_kinds();

/// How the checkpoints of a run are compared for `checkpoint_length`: on other instances than those of the evaluation.
eval::TaskEvalOptions choice_of_checkpoint(const Evaluation& evaluation);
std::vector<std::string> claim_statistics();

/// Reads a recipe (docs/studies.md) and its texts and checks every point and every evaluation before anything runs.
/// Throws ExitCode::kUsage with file:line, also when points break the rule of [equal]. With RecipeUse::kPlan no text is
/// opened.
StudyRecipe load_study(const std::filesystem::path& file, std::span<const std::string> overrides = {},
                       const std::string& tier = "cpu", train::RecipeUse use = train::RecipeUse::kRun);

/// The values of a recipe of this tier, as they stand there. Throws ExitCode::kUsage for tiers that do not exist.
nlohmann::json values_of_tier(train::TomlDocument document, const std::string& tier);

}  // namespace tamis::study
