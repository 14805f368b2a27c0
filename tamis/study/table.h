#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "tamis/study/recipe.h"

namespace tamis::study {

/// A row of the table of results: an object with "metric", "value" (a number, or null when it is not finite), and a
/// value for every column that applies, such as variant, seed, task, length. One row holds one measured number.
using Rows = std::vector<nlohmann::json>;

/// True when the row has each of these columns with this value, or with one of a list of values.
bool matches(const nlohmann::json& row, const nlohmann::json& where);

/// True when those of these columns that the row has do not say otherwise.
bool agrees(const nlohmann::json& row, const nlohmann::json& where);

/// Rows that belong together, such as those of a cell.
using RowList = std::vector<const nlohmann::json*>;

/// The mean of the finite values of each seed; the key is null for rows without a seed.
std::map<nlohmann::json, double> seed_means(const RowList& rows);

/// Of the values of `column`, the one whose mean over the seeds is highest or lowest; of equal ones the first. None if
/// no row has a finite value.
std::optional<nlohmann::json> best_value(const RowList& rows, const std::string& column, bool highest);

/// The names of the metrics that an evaluation measures.
std::vector<std::string> metrics_of(const Evaluation& evaluation);

/// The names of all metrics that the study measures.
std::vector<std::string> metrics(const StudyRecipe& recipe);

/// The columns of its points, which all rows of a point have: variant, labels, axes.
std::vector<std::string> point_columns(const StudyRecipe& recipe);

/// The columns that single rows may have besides: those of measurements, of runs and of [choose].
std::vector<std::string> row_columns(const StudyRecipe& recipe);

/// Whether higher or lower values of a metric are better; none where neither is.
std::optional<bool> higher_is_better(const std::string& metric);

/// Whether a metric is the time of something, or a rate.
bool is_time(const std::string& metric);

/// The table as CSV with a header: metric, value, then all columns by name; empty where a column does not apply.
/// Texts that look like numbers or truth values are quoted.
std::string to_csv(const Rows& rows);

/// The rows of such a text.
Rows from_csv(const std::string& text);

}  // namespace tamis::study
