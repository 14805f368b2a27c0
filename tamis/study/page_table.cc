#include "tamis/study/page_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tamis/base/json.h"
#include "tamis/study/claims.h"

namespace tamis::study {
namespace {

using nlohmann::json;
using Interval = std::pair<double, double>;

/// Where a cell stands, and what is compared with other cells.
struct Cell {
  size_t row, column;
  json group;                  // what it has in common with those that differ in the variant alone
  std::vector<double> values;  // one for each seed

  bool has_interval() const { return values.size() >= kLeastSeeds; }
};

std::vector<double> values_of(const RowList& rows) {
  std::vector<double> values;
  for (const auto& [seed, value] : seed_means(rows)) values.push_back(value);
  return values;
}

double mean_of(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return sum / static_cast<double>(values.size());
}

/// Mean and standard deviation.
std::string cell_text(const std::vector<double>& values, double scale, int digits) {
  if (values.empty()) return "-";
  const double mean = mean_of(values);
  double squares = 0;
  for (const double value : values) squares += std::pow(scale * (value - mean), 2);
  std::string text = fmt::format("{:.{}f}", scale * mean, digits);
  if (values.size() > 1) {
    text += fmt::format(" ± {:.{}f}", std::sqrt(squares / static_cast<double>(values.size() - 1)), digits);
  }
  return text;
}

/// Values of a column among the rows, in the order of the table.
std::vector<json> distinct(const RowList& rows, const std::string& column) {
  std::vector<json> values;
  bool numbers = true;
  for (const json* row : rows) {
    const json value = row->value(column, json());
    numbers = numbers && value.is_number();
    if (std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  if (numbers) std::ranges::sort(values);
  return values;
}

/// The best of these cells, if its interval overlaps with no other.
const Cell* clearly_best(const std::vector<const Cell*>& cells, bool higher) {
  if (cells.size() < 2) return nullptr;
  if (!std::ranges::all_of(cells, [](const Cell* cell) { return cell->has_interval(); })) return nullptr;
  const auto mean = [](const Cell* cell) { return mean_of(cell->values); };
  const Cell* best = higher ? *std::ranges::max_element(cells, {}, mean) : *std::ranges::min_element(cells, {}, mean);
  const Interval own = student_interval(best->values);
  const bool apart = std::ranges::all_of(cells, [&](const Cell* cell) {
    if (cell == best) return true;
    const Interval other = student_interval(cell->values);
    return higher ? other.second < own.first : other.first > own.second;
  });
  return apart ? best : nullptr;
}

/// Builds the cells of a table.
class TableBuilder {
 public:
  TableBuilder(const json& table, RowList rows)
      : table_(table), rows_(std::move(rows)), heads_(table["rows"]), column_(table["columns"]) {
    columns_ = column_.empty() ? std::vector<json>{json()} : distinct(rows_, column_);
    for (const json* row : rows_) {
      json key = json::array();
      for (const std::string& head : heads_) key.push_back(row->value(head, json()));
      if (std::ranges::find(keys_, key) == keys_.end()) keys_.push_back(key);
    }
  }

  PageTable build() {
    result_.cells = {heads_};
    for (const json& value : columns_) {
      result_.cells[0].push_back(column_.empty() ? text("metric") : number_text(value));
    }
    for (const json& key : keys_) add_line(key);
    mark_best();
    if (table_.contains("chance")) add_chance();
    add_notes();
    return std::move(result_);
  }

 private:
  std::string text(const char* key) const { return table_[key]; }

  /// Rows of a cell. With best_over only those of its best value, which is returned.
  std::optional<json> keep_best(RowList& rows) const {
    const std::string over = text("best_over");
    if (over.empty()) return std::nullopt;
    const auto best = best_value(rows, over, table_["best"] == "highest");
    if (best) std::erase_if(rows, [&](const json* row) { return row->value(over, json()) != *best; });
    return best;
  }

  RowList rows_at(const json& key, const json& value) const {
    RowList here;
    for (const json* row : rows_) {
      bool same = column_.empty() || row->value(column_, json()) == value;
      for (size_t h = 0; h < heads_.size(); ++h) same = same && row->value(heads_[h], json()) == key[h];
      if (same) here.push_back(row);
    }
    return here;
  }

  /// The columns of a cell without the variant.
  json group_of(const json& key, const json& value) const {
    json group = {{column_, value}};
    for (size_t h = 0; h < heads_.size(); ++h) group[heads_[h]] = key[h];
    group.erase("variant");
    return group;
  }

  void add_line(const json& key) {
    std::vector<std::string> line;
    for (const json& value : key) line.push_back(number_text(value));
    for (const json& value : columns_) {
      RowList here = rows_at(key, value);
      const std::optional<json> best = keep_best(here);
      cells_.push_back({result_.cells.size(), line.size(), group_of(key, value), values_of(here)});
      std::string cell = cell_text(cells_.back().values, table_["scale"], table_["digits"]);
      if (best && !best->is_null()) cell += fmt::format(" ({})", number_text(*best));
      line.push_back(cell);
    }
    result_.cells.push_back(line);
  }

  void mark_best() {
    const std::optional<bool> higher = higher_is_better(text("metric"));
    if (!higher) return;
    std::map<json, std::vector<const Cell*>> groups;
    for (const Cell& cell : cells_) {
      if (!cell.values.empty()) groups[cell.group].push_back(&cell);
    }
    for (const auto& [group, cells] : groups) {
      if (const Cell* best = clearly_best(cells, *higher)) result_.bold.emplace(best->row, best->column);
    }
  }

  /// The last line: what guessing would give.
  void add_chance() {
    std::vector<std::string> line(heads_.size());
    line[0] = "chance";
    const json& chance = table_["chance"];
    const double scale = table_["scale"];
    for (const json& value : columns_) {
      const json here = chance.is_number() ? chance : chance.value(plain_text(value), json());
      const int digits = table_["digits"];
      line.push_back(here.is_number() ? fmt::format("{:.{}f}", scale * here.get<double>(), digits) : "-");
    }
    result_.cells.push_back(line);
  }

  void add_notes() {
    result_.notes = {text("metric") + (column_.empty() ? "" : ", by " + column_)};
    if (!text("best_over").empty()) result_.notes.push_back("in brackets the best " + text("best_over"));
    if (table_["scale"] != 1.0) result_.notes.push_back("times " + number_text(table_["scale"]));
    if (!result_.bold.empty()) {
      result_.notes.emplace_back("in bold the best variant, if its 95% interval over seeds overlaps with no other");
    }
  }

  const json& table_;
  const RowList rows_;
  const std::vector<std::string> heads_;
  const std::string column_;
  std::vector<json> columns_;
  std::vector<json> keys_;  // lists of the row columns' values
  std::vector<Cell> cells_;
  PageTable result_;
};

}  // namespace

std::string number_text(const json& value) {
  if (!value.is_number()) return value.is_null() ? "-" : plain_text(value);
  const double number = value;
  if (number == std::floor(number) && std::abs(number) < 1e15) return fmt::format("{}", static_cast<int64_t>(number));
  return fmt::format("{:.4g}", number);
}

std::optional<PageTable> page_table(const json& table, const Rows& rows) {
  RowList selected;
  for (const json& row : rows) {
    if (row["metric"] == table["metric"] && matches(row, table["where"])) selected.push_back(&row);
  }
  if (selected.empty()) return std::nullopt;
  return TableBuilder(table, std::move(selected)).build();
}

}  // namespace tamis::study
