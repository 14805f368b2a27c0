#include <fmt/format.h>

#include <algorithm>

#include "tamis/base/digest.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/data/input_files.h"
#include "tamis/data/registry.h"
#include "tamis/models/model.h"
#include "tamis/study/functions.h"
#include "tamis/study/recall.h"
#include "tamis/study/recipe_reader.h"
#include "tamis/study/table.h"
#include "tamis/train/recipe_fields.h"
#include "tamis/train/table_reader.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using train::TableReader;

constexpr int64_t kMostPointRows = 1000;     // of kind loss: rows of one model and length
constexpr int64_t kMostRelevances = 200000;  // of kind relevance: rows of one model

class EvaluationsReader : RecipeReader {
 public:
  using RecipeReader::RecipeReader;

  void read() {
    const json from = list("evaluations");
    for (size_t i = 0; i < from.size(); ++i) read_evaluation(from[i], fmt::format("evaluations.{}", i));
    if (!recipe_.model && from.empty()) refuse("", "expected [model] and [data], or [[evaluations]]");
  }

 private:
  void read_evaluation(const json& from, const std::string& path) {
    TableReader reader(document_, path, from);
    Evaluation evaluation;
    evaluation.kind = "task";
    reader("kind", evaluation.kind, Allowed{.choices = evaluation_kinds()});
    const bool function = evaluation.kind == "function";
    if (!function && !recipe_.model) refuse(path, fmt::format("{}: kind {} needs a [model]", path, evaluation.kind));
    for (const char* known : {"where", "model", "settings"}) reader.accept(known);
    evaluation.where = table_at(from, "where", path);
    check_where_of_points(evaluation.where, path + ".where");
    if (evaluation.kind == "task" || evaluation.kind == "recall") read_task(reader, from, path, evaluation);
    if (evaluation.kind == "loss") read_text(reader, path, evaluation);
    if (function || evaluation.kind == "parameters") reader("name", evaluation.name);
    if (const std::string& kind = evaluation.kind;
        kind == "costs" || kind == "flops" || kind == "speed" || kind == "loss" || kind == "relevance") {
      reader("lengths", evaluation.lengths, Allowed{.least = 1, .most = train::kMostTokens});
      if (evaluation.lengths.empty()) refuse(path, path + ".lengths: expected at least one");
    }
    if (evaluation.kind == "lm_eval") read_lm_eval(reader, path, evaluation);
    const bool as_trained =
        evaluation.kind == "parameters" || evaluation.kind == "heads" || evaluation.kind == "lm_eval";
    if (!function && !as_trained) read_changes(reader, from, path, evaluation);
    if (evaluation.kind == "relevance") read_relevance(reader, path, evaluation);
    reader.refuse_other_keys();
    if (function) {
      evaluation.settings = table_at(from, "settings", path);
      try {
        evaluation.settings = function_settings(evaluation.name, evaluation.settings);
      } catch (const Error& error) {
        refuse(path, error.what());
      }
    }
    recipe_.evaluations.push_back(std::move(evaluation));
  }

  /// Columns that select points.
  void check_where_of_points(const json& where, const std::string& path) const {
    const std::vector<std::string> known = point_columns(recipe_);
    for (const auto& [column, value] : where.items()) {
      check_known("column of the points", column, known, fmt::format("{}.{}", path, column));
      check_values(column, value, path);
    }
  }

  /// The text is opened here, so that a missing file is noticed before anything is trained.
  void read_text(TableReader& reader, const std::string& path, Evaluation& evaluation) const {
    std::string file;
    reader("file", file);
    reader("files", evaluation.files);
    if (file.empty() == evaluation.files.empty()) {
      refuse(path, path + (file.empty() ? ".file: expected a text file" : ": expected file or files, not both"));
    }
    if (!file.empty()) evaluation.files = {file};
    reader("middle", evaluation.loss.middle);
    reader("points", evaluation.loss.points, Allowed{.least = 0, .most = kMostPointRows});
    reader("smooth", evaluation.loss.smooth, Allowed{.least = 0, .most = 1});
    try {
      eval::check_options(evaluation.loss);
    } catch (const Error& error) {
      refuse(path, error.what());
    }
    if (use_ != train::RecipeUse::kRun) return;
    std::string digests;
    for (const data::InputFile& each : data::find_input_files(evaluation.files, "auto")) {
      if (each.format != data::TextFormat::kText || each.compression != data::Compression::kNone) {
        refuse(path, fmt::format("{}: {} is not a plain text file", path, each.path.string()));
      }
      evaluation.texts.push_back(each.path.string());
      digests += sha256(MappedFile(each.path).text());
    }
    evaluation.digest = evaluation.texts.size() == 1 ? digests : sha256(digests);
  }

  /// The text is the beginning of a validation example, so it is not longer.
  void read_relevance(TableReader& reader, const std::string& path, Evaluation& evaluation) const {
    if (!recipe_.train) refuse(path, path + ": kind relevance reads validation data, but study.train is false");
    if (recipe_.points.front().recipe().train.validate_tokens == 0) {
      refuse(path, path + ": kind relevance reads validation data, but train.validate_tokens is 0");
    }
    evaluation.heads = 4;
    reader("heads", evaluation.heads, Allowed{.least = 1, .most = 64});
    int64_t rows = 0;
    for (const int64_t length : evaluation.lengths) rows += evaluation.heads * length * (length + 1) / 2;
    rows *= static_cast<int64_t>(evaluation.changes.size() * evaluation.expand_windows.size());
    if (rows > kMostRelevances) {
      refuse(path,
             fmt::format("{}: {} heads of these lengths are {} pairs of tokens, more than {}; use shorter texts or "
                         "fewer heads",
                         path, evaluation.heads, rows, kMostRelevances));
    }
    for (const Point& point : recipe_.points) {
      const int64_t longest = std::ranges::max(evaluation.lengths), trained = point.recipe().train.length;
      if (longest <= trained || !matches(point.columns, evaluation.where)) continue;
      refuse(path, fmt::format("{}: {} tokens are more than train.length = {}, the length of a validation example ({})",
                               path, longest, trained, point.name));
    }
  }

  void read_lm_eval(TableReader& reader, const std::string& path, Evaluation& evaluation) const {
    if (!recipe_.train) refuse(path, path + ": kind lm_eval reads the checkpoint of a run, but study.train is false");
    LmEvalOptions& options = evaluation.lm_eval;
    reader("tasks", options.tasks);
    reader("include", options.include);
    reader("limit", options.limit, Allowed{.least = 0, .most = train::kMostTokens});
    if (options.tasks.empty()) refuse(path, path + ".tasks: expected at least one task of lm_eval");
    if (use_ == train::RecipeUse::kRun) evaluation.digest = digest_of_tasks(options);
  }

  void read_task(TableReader& reader, const json& from, const std::string& path, Evaluation& evaluation) const {
    eval::TaskEvalOptions& task = evaluation.task;
    std::vector<std::string> names;
    for (const data::Task& each : data::tasks()) names.push_back(each.name);
    if (evaluation.kind == "recall") names = recall_tasks();
    reader("task", task.task, Allowed{.choices = names});
    const data::Task& found = data::find_task(task.task);
    int64_t trained = recipe_.points.front().recipe().train.length, seed = 0;
    for (const train::SourceRecipe& source : recipe_.points.front().recipe().data.sources) {
      if (source.kind != task.task) continue;
      task.settings = source.task.settings;
      task.haystack = source.task.haystack;
      if (source.task.length > 0) trained = source.task.length;
    }
    if (found.takes_depth) task.depths = {0.1, 0.3, 0.5, 0.7, 0.9};
    reader("lengths", task.lengths, Allowed{.least = 1, .most = train::kMostTokens});
    std::vector<int64_t> multiples;  // of the length that the task was trained at
    reader("multiples", multiples, Allowed{.least = 1, .most = 1 << 20});
    reader("instances", task.instances, Allowed{.least = 1, .most = train::kMostTokens});
    reader("seed", seed, Allowed{.least = 0});
    if (evaluation.kind == "task") {
      reader("depths", task.depths, Allowed{.least = 0.0, .most = 1.0});
      reader("cell_tokens", task.cell_tokens, Allowed{.least = 0, .most = train::kMostTokens});
      reader("needle_score", task.needle_score);
      reader("skip_end_of_text", task.skip_end_of_text);
      reader("checkpoint_length", evaluation.checkpoint_length, Allowed{.least = 0, .most = train::kMostTokens});
      if (evaluation.checkpoint_length > 0) check_checkpoints(evaluation, path);
    }
    task.seed = static_cast<uint64_t>(seed);
    std::string haystack = task.haystack.string();
    reader("haystack", haystack);
    task.haystack = haystack;
    const json settings = table_at(from, "settings", path);
    for (const auto& [name, value] : settings.items()) {
      if (!value.is_number_integer()) refuse(path, fmt::format("{}.settings.{} must be an integer", path, name));
      task.settings[name] = value;
    }
    for (const int64_t multiple : multiples) task.lengths.push_back(multiple * trained);
    if (task.lengths.empty()) refuse(path, path + ": expected lengths or multiples");
    try {
      eval::check_options(task);
      if (evaluation.checkpoint_length > 0) eval::check_options(choice_of_checkpoint(evaluation));
    } catch (const Error& error) {
      refuse(path, fmt::format("{} ({})", error.what(), path));
    }
    if (use_ == train::RecipeUse::kRun && !task.haystack.empty()) {
      evaluation.digest = sha256(MappedFile(task.haystack).text());
    }
  }

  /// A choice among checkpoints needs runs that keep all of them.
  void check_checkpoints(const Evaluation& evaluation, const std::string& path) const {
    for (const Point& point : recipe_.points) {
      if (!matches(point.columns, evaluation.where)) continue;
      const train::TrainRecipe& train = point.recipe().train;
      if (recipe_.train && train.save_every < train.steps && train.keep == 0) continue;
      refuse(path,
             fmt::format("{}.checkpoint_length chooses among all checkpoints of a run; {} needs {}", path, point.name,
                         recipe_.train ? fmt::format("[train] keep = 0 and save_every below its {} steps", train.steps)
                                       : "training, but study.train is false"));
    }
  }

  /// `expand_windows = [true, false]` and `model = {rope_factor = [1, 4]}`: every combination is measured.
  void read_changes(TableReader& reader, const json& from, const std::string& path, Evaluation& evaluation) const {
    reader.accept("expand_windows");
    const json given = from.value("expand_windows", json(true)), all = given.is_array() ? given : json::array({given});
    for (const json& each : all) {
      const bool is_known = each.is_boolean() && std::ranges::count(all, each) == 1;
      if (!is_known) refuse(path, path + ".expand_windows must be true, false or a list of both");
      evaluation.expand_windows.push_back(each);
    }
    evaluation.changes.assign(1, json::object());
    const json changes = table_at(from, "model", path);
    for (const auto& [key, value] : changes.items()) {
      const json values = value.is_array() ? value : json::array({value});
      std::vector<json> next;
      for (const json& before : evaluation.changes) {
        for (const json& each : values) {
          next.push_back(before);
          next.back()[key] = each;
        }
      }
      evaluation.changes = std::move(next);
    }
    for (const Point& point : recipe_.points) {
      if (!matches(point.columns, evaluation.where)) continue;
      for (const json& change : evaluation.changes) check_change(point, change, path);
    }
  }

  void check_change(const Point& point, const json& change, const std::string& path) const {
    json config = point.recipe().model;
    for (const auto& [key, value] : change.items()) config[key] = value;
    try {
      models::complete_config(config);
    } catch (const Error& error) {
      refuse(path, fmt::format("{}.model: {} ({})", path, error.what(), point.name));
    }
  }
};

}  // namespace

void read_evaluations(const train::TomlDocument& document, train::RecipeUse use, StudyRecipe& recipe) {
  EvaluationsReader(document, use, recipe).read();
}

}  // namespace tamis::study
