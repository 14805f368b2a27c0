#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "tamis/base/digest.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/data/input_files.h"
#include "tamis/data/registry.h"
#include "tamis/study/claims.h"
#include "tamis/study/figures.h"
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

/// The keys of figures and tables that name columns.
constexpr std::array kColumnKeys = {"x", "y", "panels", "series", "rows", "columns", "best_over"};

class MeasurementsReader : RecipeReader {
 public:
  using RecipeReader::RecipeReader;

  void read() {
    read_evaluations();
    if (!recipe_.model && recipe_.evaluations.empty()) refuse("", "expected [model] and [data], or [[evaluations]]");
    for (size_t i = 0; i < list("claims").size(); ++i) read_claim(list("claims")[i], fmt::format("claims.{}", i));
    for (const char* kind : {"figures", "tables"}) read_outputs(kind);
  }

 private:
  void read_evaluations() {
    const json from = list("evaluations");
    for (size_t i = 0; i < from.size(); ++i) read_evaluation(from[i], fmt::format("evaluations.{}", i));
  }

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

  /// Columns that select rows of results. A column or a value that no row has would be noticed only after the runs.
  void check_where(const json& where, const std::string& path) const {
    const std::vector<std::string> measured = row_columns(recipe_);
    for (const auto& [column, value] : where.items()) {
      check_column(column, fmt::format("{}.{}", path, column));
      if (std::ranges::find(measured, column) == measured.end()) check_values(column, value, path);
    }
  }

  /// Columns that select points.
  void check_where_of_points(const json& where, const std::string& path) const {
    const std::vector<std::string> known = point_columns(recipe_);
    for (const auto& [column, value] : where.items()) {
      check_known("column of the points", column, known, fmt::format("{}.{}", path, column));
      check_values(column, value, path);
    }
  }

  void check_values(const std::string& column, const json& value, const std::string& path) const {
    std::vector<json> values;
    for (const Point& point : recipe_.points) {
      if (point.columns.contains(column)) values.push_back(point.columns[column]);
    }
    for (const json& each : value.is_array() ? value : json::array({value})) {
      if (std::ranges::find(values, each) != values.end()) continue;
      std::vector<std::string> known;
      for (const json& found : values) {
        if (plain_text(found) == plain_text(each)) {
          refuse(fmt::format("{}.{}", path, column),
                 fmt::format("{}.{} is {} in this study, not {}", path, column, found.dump(), each.dump()));
        }
        if (std::ranges::find(known, plain_text(found)) == known.end()) known.push_back(plain_text(found));
      }
      refuse(fmt::format("{}.{}", path, column), unknown_name(column, plain_text(each), known));
    }
  }

  void check_column(const std::string& column, const std::string& path) const {
    std::vector<std::string> known = point_columns(recipe_);
    for (const std::string& name : row_columns(recipe_)) {
      if (std::ranges::find(known, name) == known.end()) known.push_back(name);
    }
    check_known("column", column, known, path);
  }

  /// x is a column or a metric of the same model.
  void check_x(const std::string& name, const std::string& path) const {
    const std::vector<std::string> known = metrics(recipe_);
    if (std::ranges::find(known, name) == known.end()) check_column(name, path);
  }

  /// The columns of a figure or a table.
  void check_columns(const json& output, const std::string& path) const {
    for (const char* key : kColumnKeys) {
      const json value = output.value(key, json::array());
      for (const json& name : value.is_array() ? value : json::array({value})) {
        const std::string at = fmt::format("{}.{}", path, key);
        if (name == "") continue;
        std::string_view(key) == "x" ? check_x(name, at) : check_column(name, at);
      }
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

  void read_claim(const json& from, const std::string& path) {
    TableReader reader(document_, path, from);
    Claim claim;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    double least = nan, most = nan, above = nan, seeds_above = nan, within = nan;
    claim.statistic = "value";
    reader("id", claim.id);
    reader("text", claim.text);
    reader("paper", claim.paper);
    reader("metric", claim.metric);
    reader("statistic", claim.statistic, Allowed{.choices = claim_statistics()});
    reader("x", claim.x);
    reader("best_over", claim.best_over);
    reader("best", claim.best, Allowed{.choices = {"highest", "lowest"}});
    reader("paired", claim.paired);
    reader("needs", claim.needs);
    reader("above", above);
    reader("seeds_above", seeds_above);
    reader("within", within, Allowed{.least = 0});
    reader("at_least", least);
    reader("at_most", most);
    for (const char* known : {"of", "than"}) reader.accept(known);
    reader.refuse_other_keys();
    claim.of = table_at(from, "of", path);
    claim.than = table_at(from, "than", path);
    check_where(claim.of, path + ".of");
    check_where(claim.than, path + ".than");
    if (!claim.best_over.empty()) check_column(claim.best_over, path + ".best_over");
    if (!claim.x.empty()) check_x(claim.x, path + ".x");
    if (!std::isnan(above)) claim.above = above;
    if (!std::isnan(seeds_above)) claim.seeds_above = seeds_above;
    if (!std::isnan(within)) claim.within = within;
    if (!std::isnan(least)) claim.at_least = least;
    if (!std::isnan(most)) claim.at_most = most;
    if (claim.id.empty()) claim.id = fmt::format("claim-{}", recipe_.claims.size() + 1);
    claim.stated = from;
    check_claim(claim, path);
    recipe_.claims.push_back(std::move(claim));
  }

  void check_claim(const Claim& claim, const std::string& path) const {
    if (claim.text.empty()) refuse(path, path + ".text: expected the statement in words");
    if (!(claim.at_least || claim.at_most)) refuse(path, path + ": expected at_least or at_most, the margin");
    if (claim.at_most && claim.at_least > claim.at_most) refuse(path, path + ": at_least is above at_most");
    for (const Claim& other : recipe_.claims)
      if (other.id == claim.id) refuse(path, fmt::format("{}.id: \"{}\" is used twice", path, claim.id));
    check_needs(claim, path + ".needs");
    check_metric(claim.metric, path + ".metric");
    check_one_checkpoint(claim.metric, claim.of, {claim.best_over}, path);
    if (!claim.than.empty()) check_one_checkpoint(claim.metric, claim.than, {claim.best_over}, path);
    const bool two = claim.statistic == "difference" || claim.statistic == "ratio" || claim.statistic == "gap";
    const bool upper = claim.statistic == "upper_x";  // with and without `than`
    if (two == claim.than.empty() && !upper) {
      refuse(path, fmt::format("{}: the statistic {} {} `than`", path, claim.statistic, two ? "needs" : "has no"));
    }
    if (claim.paired) check_pairs(claim, path + ".paired");
    if (upper != claim.within.has_value()) {
      refuse(path, fmt::format("{}: the statistic {} {} `within`", path, claim.statistic, upper ? "needs" : "has no"));
    }
    const bool fit = upper || claim.statistic == "slope" || claim.statistic == "gap" || claim.statistic == "r_squared";
    if (fit == claim.x.empty()) {
      refuse(path, fmt::format("{}: the statistic {} {} `x`", path, claim.statistic, fit ? "needs" : "has no"));
    }
    if (upper) check_upper_x(claim, path);
    if (claim.seeds_above && (fit || claim.above)) {
      refuse(path, fmt::format("{}: seeds_above counts seeds; it cannot be used with {}", path,
                               fit ? "x" : "above, which counts values"));
    }
  }

  /// A run that diverged has no measurements, only the columns of its point.
  void check_upper_x(const Claim& claim, const std::string& path) const {
    const std::vector<std::string> known = point_columns(recipe_);
    if (std::ranges::count(known, claim.x) > 0 && claim.best_over.empty() && !claim.above) return;
    refuse(path, fmt::format("{}: upper_x needs as x one of {}, and neither best_over nor above", path,
                             fmt::join(known, ", ")));
  }

  void check_needs(const Claim& claim, const std::string& path) const {
    std::vector<std::string> before;
    for (const Claim& other : recipe_.claims) before.push_back(other.id);
    for (const std::string& id : claim.needs) {
      if (std::ranges::find(before, id) != before.end()) continue;
      refuse(path, before.empty() ? fmt::format("{}: there is no claim before this one", path)
                                  : unknown_name("claim before this one", id, before));
    }
  }

  /// Runs of one seed are compared with each other, so both groups need the same seeds.
  void check_pairs(const Claim& claim, const std::string& path) const {
    if (claim.statistic != "difference") {
      refuse(path, fmt::format("{}: pairs are those of a difference, but the statistic is {}", path, claim.statistic));
    }
    const auto seeds = [&](const json& where) {
      std::vector<int64_t> found;
      for (const int64_t seed : recipe_.seeds) {
        if (matches({{"seed", seed}}, where.contains("seed") ? json{{"seed", where["seed"]}} : json::object()))
          found.push_back(seed);
      }
      return found;
    };
    const std::vector<int64_t> of = seeds(claim.of), than = seeds(claim.than);
    if (of == than) return;
    refuse(path, fmt::format("{}: `of` has the seeds {}, but `than` has {}; pairs need the same", path, json(of).dump(),
                             json(than).dump()));
  }

  void check_metric(const std::string& metric, const std::string& path) const {
    check_known("metric", metric, metrics(recipe_), path);
  }

  void check_known(const char* kind, const std::string& name, const std::vector<std::string>& known,
                   const std::string& path) const {
    if (std::ranges::find(known, name) == known.end()) refuse(path, unknown_name(kind, name, known));
  }

  /// With checkpoint_length a metric has rows of two checkpoints, and their mean says nothing: `where` or one of the
  /// columns has to tell them apart.
  void check_one_checkpoint(const std::string& metric, const json& where, const std::vector<std::string>& columns,
                            const std::string& path) const {
    if (where.contains("checkpoint") || std::ranges::find(columns, "checkpoint") != columns.end()) return;
    for (const Evaluation& evaluation : recipe_.evaluations) {
      const std::vector<std::string> measured = metrics_of(evaluation);
      if (evaluation.checkpoint_length == 0 || metric == "chosen_step") continue;
      if (std::ranges::find(measured, metric) == measured.end() || !selects(where, evaluation)) continue;
      refuse(path, fmt::format("{}: {} is measured of two checkpoints; select one, such as checkpoint = \"chosen\"",
                               path, metric));
    }
  }

  /// Whether rows of the evaluation may have these columns.
  bool selects(const json& where, const Evaluation& evaluation) const {
    return std::ranges::any_of(recipe_.points, [&](const Point& point) {
      json known = point.columns;
      known["task"] = evaluation.task.task;
      return matches(point.columns, evaluation.where) && agrees(known, where);
    });
  }

  void check_id(const std::string& id, const std::string& path) const {
    if (!is_plain(id)) refuse(path + ".id", path + ".id must be letters, digits, ., +, - and _");
    for (const json& other : recipe_.figures) {
      if (other["id"] == id) refuse(path + ".id", fmt::format("{}.id: \"{}\" is used twice", path, id));
    }
  }

  /// The columns by which a figure or a table tells rows apart.
  static std::vector<std::string> columns_of(const json& output) {
    std::vector<std::string> columns;
    for (const char* key : kColumnKeys) {
      const json value = output.value(key, json::array());
      for (const json& column : value.is_array() ? value : json::array({value}))
        columns.push_back(column.get<std::string>());
    }
    return columns;
  }

  void read_outputs(const std::string& kind) {
    const json from = list(kind);
    for (size_t i = 0; i < from.size(); ++i) {
      const std::string path = fmt::format("{}.{}", kind, i);
      try {
        json checked = kind == "figures" ? complete_figure(from[i], i) : complete_table(from[i], i);
        check_metric(checked["metric"], path + ".metric");
        check_where(checked["where"], path + ".where");
        check_columns(checked, path);
        check_one_checkpoint(checked["metric"], checked["where"], columns_of(checked), path);
        if (kind == "figures") check_id(checked["id"], path);
        (kind == "figures" ? recipe_.figures : recipe_.tables).push_back(std::move(checked));
      } catch (const Error& error) {
        const std::string text = error.what();
        if (text.starts_with(document_.name)) throw;
        refuse(path, fmt::format("{}: {}", path, text));
      }
    }
  }
};

}  // namespace

void read_measurements(const train::TomlDocument& document, train::RecipeUse use, StudyRecipe& recipe) {
  MeasurementsReader(document, use, recipe).read();
}

}  // namespace tamis::study
