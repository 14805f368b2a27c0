#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tamis/study/table.h"

namespace tamis::study {

/// A table as a page shows it.
struct PageTable {
  std::vector<std::vector<std::string>> cells;  // the first row is the head
  std::set<std::pair<size_t, size_t>> bold;     // row and column of the cells in bold
  std::vector<std::string> notes;
};

/// One of [[tables]] as complete_table() returns it; none without rows. A cell is the mean over seeds and their
/// standard deviation.
///
/// Among the cells that differ in the variant alone, the best is bold if its 95% interval over the seeds overlaps with
/// no other; never if one of them has fewer than three seeds, or if the metric has no better direction.
std::optional<PageTable> page_table(const nlohmann::json& table, const Rows& rows);

/// A number with four digits, `-` for null, else the text of the value.
std::string number_text(const nlohmann::json& value);

}  // namespace tamis::study
