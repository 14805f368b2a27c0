#pragma once

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/study/table.h"

namespace tamis::study {

/// One of [[figures]] with all defaults; `index` names those without an id. Throws ExitCode::kUsage without a position.
///
///   id, title, metric, where     rows of the metric with these columns; values of equal columns are averaged
///   kind                         lines, scatter, bars, heatmap or histogram (of the metric, without x)
///   x, y                         columns; x may also be a metric of the same point and seed. y is the heatmap's
///   series, panels               columns whose values get a line of their own, and a panel of their own
///   x_scale, y_scale             linear or log
///   band                         over the seeds: sd, range or none
///   fit                          of each series: power (a straight line in logarithms), log (a + b ln x) or none
///   best_over, best              of the values of this column only the highest or lowest is shown; heatmaps name it
///   smooth                       lines: the mean over this many neighbours, centred
///   chance                       what guessing gives, a dashed line: a number, or one for each value of `panels`; of a
///                                heatmap only a number; not of a histogram
///   x_label, y_label             text
nlohmann::json complete_figure(const nlohmann::json& figure, size_t index);

/// One of [[tables]] with all defaults: title, metric, where, rows (columns, at least one), columns (a column),
/// best_over, best, scale (a factor, such as 100), digits, chance (a number, or one for each value of `columns`: a line
/// of the table).
nlohmann::json complete_table(const nlohmann::json& table, size_t index);

/// Writes ID.svg and ID.pdf of every figure into `directory` with matplotlib, and returns the ids of those that were
/// drawn; a message on `messages` says why others were not. Figures without rows are left out.
std::vector<std::string> draw(const nlohmann::json& figures, const Rows& rows, const std::filesystem::path& directory,
                              std::FILE* messages);

}  // namespace tamis::study
