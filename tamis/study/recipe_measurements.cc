#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/study/claims.h"
#include "tamis/study/figures.h"
#include "tamis/study/recipe_reader.h"
#include "tamis/study/table.h"
#include "tamis/train/recipe_fields.h"
#include "tamis/train/table_reader.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using train::TableReader;

/// The keys of figures and tables that name columns.
constexpr std::array kColumnKeys = {"x", "y", "panels", "series", "rows", "columns", "best_over"};

class MeasurementsReader : RecipeReader {
 public:
  using RecipeReader::RecipeReader;

  void read() {
    for (size_t i = 0; i < list("claims").size(); ++i) read_claim(list("claims")[i], fmt::format("claims.{}", i));
    for (const char* kind : {"figures", "tables"}) read_outputs(kind);
  }

 private:
  /// Columns that select rows of results. A column or a value that no row has would be noticed only after the runs.
  void check_where(const json& where, const std::string& path) const {
    const std::vector<std::string> measured = row_columns(recipe_);
    for (const auto& [column, value] : where.items()) {
      check_column(column, fmt::format("{}.{}", path, column));
      if (std::ranges::find(measured, column) == measured.end()) check_values(column, value, path);
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
