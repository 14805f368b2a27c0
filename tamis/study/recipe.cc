#include "tamis/study/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/data/input_files.h"
#include "tamis/study/options.h"
#include "tamis/study/recipe_reader.h"
#include "tamis/train/recipe_fields.h"
#include "tamis/train/table_reader.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using train::TableReader;
using train::TomlDocument;

/// Applies the changes of [tiers.NAME] and removes all of [tiers]. A tier with its own [data] does not inherit the
/// command that makes the texts.
void apply_tier(TomlDocument& document, const std::string& tier) {
  const auto refuse = [&](const std::string& path, const std::string& text) {
    throw Error(ExitCode::kUsage, document.position(path) + ": " + text);
  };
  const json all = document.values.value("tiers", json::object());
  if (!all.is_object()) refuse("tiers", "[tiers] must be a table of tables, such as [tiers.gpu]");
  for (const auto& [name, over] : all.items()) {
    if (std::ranges::find(tiers(), name) == tiers().end() || name == tiers().front()) {
      refuse("tiers." + name, unknown_name("tier", name, std::span(tiers()).subspan(1)));
    }
    if (!over.is_object()) refuse("tiers." + name, fmt::format("tiers.{} must be a table", name));
  }
  if (tier != tiers().front()) {
    if (!all.contains(tier)) refuse("tiers", fmt::format("there is no [tiers.{}]", tier));
    const auto study = document.values.find("study");
    if (study != document.values.end() && study->is_object() && all[tier].contains("data")) study->erase("prepare");
    put_over(document, document.values, "", all[tier], "tiers." + tier);
  }
  document.values.erase("tiers");
}

/// Whether a text of the study is not where it should be.
bool misses_text(const TomlDocument& document, const StudyRecipe& recipe) {
  std::vector<std::string> files;
  for (const json& evaluation : document.values.value("evaluations", json::array())) {
    files.push_back(text_at(evaluation, "file"));
    files.push_back(text_at(evaluation, "haystack"));
    for (const json& file : evaluation.value("files", json::array())) files.push_back(plain_text(file));
  }
  for (const Point& point : recipe.points) {
    for (const Option& option : point.options) {
      for (const train::SourceRecipe& source : option.recipe.data.sources) {
        std::ranges::copy(source.files, std::back_inserter(files));
        std::ranges::copy(source.validation_files, std::back_inserter(files));
        files.push_back(source.task.haystack);
      }
    }
  }
  return std::ranges::any_of(files, [](const std::string& file) {
    try {
      if (!file.empty()) data::find_input_files({file}, "auto");
      return false;
    } catch (const Error& error) {
      return error.code() == ExitCode::kInput;
    }
  });
}

/// Reads [study].
class StudyReader : RecipeReader {
 public:
  using RecipeReader::RecipeReader;

  void read() {
    refuse_other_tables();
    recipe_.model = document_.values.contains("model") || document_.values.contains("data");
    read_study();
  }

 private:
  void refuse_other_tables() const {
    const std::vector<std::string> tables = {"study",  "choose",  "equal",  "axes",  "variants", "evaluations", "tiers",
                                             "claims", "figures", "tables", "model", "data",     "train"};
    for (const auto& [key, value] : document_.values.items()) {
      if (std::ranges::find(tables, key) == tables.end()) refuse(key, unknown_name("table", key, tables));
    }
  }

  void read_study() {
    const json from = document_.values.value("study", json::object());
    TableReader reader(document_, "study", from);
    recipe_.id = std::filesystem::path(document_.name).stem().string();
    reader("id", recipe_.id);
    if (!is_plain(recipe_.id)) refuse("study.id", fmt::format("study.id must be letters, digits, ., +, - and _"));
    recipe_.title = recipe_.id;
    std::string dir = (std::filesystem::path("runs") / recipe_.id).string(), runs;
    double seconds = 0;  // expected on two cores: `tamis repro --list` shows it
    reader("title", recipe_.title);
    reader("question", recipe_.question);
    reader("paper", recipe_.paper);
    reader("assumptions", recipe_.assumptions);
    reader("prepare", recipe_.prepare);
    reader("train", recipe_.train);
    reader("seconds", seconds, Allowed{.least = 0});
    reader("dir", dir);
    reader("runs", runs);
    reader("seeds", recipe_.seeds, Allowed{.least = 0});
    reader.refuse_other_keys();
    recipe_.dir = dir;
    recipe_.runs = runs;
    if (recipe_.seeds.empty()) refuse("study.seeds", "study.seeds is empty; give at least one seed");
    refuse_twice("study.seeds", recipe_.seeds);
    if (!recipe_.model) recipe_.train = false;
  }
};

}  // namespace

std::vector<std::string> evaluation_texts(const StudyRecipe& study) {
  std::vector<std::string> texts;
  for (const Evaluation& evaluation : study.evaluations) texts.push_back(evaluation.digest);
  return texts;
}

int64_t own_steps(const Point& point) {
  return point.recipe().train.steps - steps_taken_over(point);
}

int64_t steps_taken_over(const Point& point) {
  return point.start && point.recipe().train.start_state == "all" ? point.start->step : 0;
}

int64_t tokens_read(const StudyRecipe& study, const Point& point) {
  const auto own = [&](int64_t steps) { return steps * point.recipe().train.batch_tokens; };
  if (!point.start) return own(own_steps(point));
  const Point& before = study.points[point.start->point];
  const int64_t left_out = before.recipe().train.steps - point.start->step;  // after the checkpoint
  return tokens_read(study, before) - left_out * before.recipe().train.batch_tokens + own(own_steps(point));
}

std::vector<std::string> evaluation_kinds() {
  return {"task",   "loss",      "heads",   "flops",      "costs",   "speed",
          "recall", "relevance", "lm_eval", "parameters", "function"};
}

eval::TaskEvalOptions choice_of_checkpoint(const Evaluation& evaluation) {
  eval::TaskEvalOptions options = evaluation.task;
  options.lengths = {evaluation.checkpoint_length};
  options.seed += 1;
  options.needle_score = false;
  options.expand_windows = evaluation.expand_windows.empty() || evaluation.expand_windows.front();
  return options;
}

json values_of_tier(TomlDocument document, const std::string& tier) {
  apply_tier(document, tier);
  return document.values;
}

StudyRecipe load_study(const std::filesystem::path& file, std::span<const std::string> overrides,
                       const std::string& tier, train::RecipeUse use) {
  if (file == "-")
    fail(ExitCode::kUsage, "study: the recipe has to be a file, which names the study and is read again");
  TomlDocument document = train::read_toml(file);
  std::string toml = read_file(file);
  if (!toml.ends_with('\n')) toml += '\n';  // the comments below begin a line
  for (const std::string& assignment : overrides) {
    train::override_value(document, assignment);
    toml += fmt::format("# --set {}\n", assignment);
  }
  if (tier != tiers().front()) toml += fmt::format("# --tier {}\n", tier);
  apply_tier(document, tier);
  StudyRecipe recipe;
  StudyReader(document, use, recipe).read();
  try {
    read_points(document, use, recipe);
    read_evaluations(document, use, recipe);
    read_measurements(document, use, recipe);
  } catch (const Error& error) {
    const bool missing = error.code() == ExitCode::kInput && !recipe.prepare.empty() && misses_text(document, recipe);
    if (!missing) throw;
    throw Error(error.code(), fmt::format("{}; make the texts of this study with: {}", error.what(), recipe.prepare));
  }
  recipe.toml = std::move(toml);
  if (tier != tiers().front() && recipe.dir == std::filesystem::path("runs") / recipe.id) {
    recipe.dir = std::filesystem::path("runs") / (recipe.id + "-" + tier);
  }
  if (recipe.runs.empty())
    recipe.runs = recipe.dir;
  else if (tier != tiers().front())
    recipe.runs += "-" + tier;
  return recipe;
}

}  // namespace tamis::study
