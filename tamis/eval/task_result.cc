// Output of task results: as JSON, and as a table for the terminal.

#include <fmt/format.h>

#include <algorithm>

#include "tamis/base/terminal.h"
#include "tamis/eval/interval.h"
#include "tamis/eval/task_eval.h"

namespace tamis::eval {
namespace {

double share(double part, const TaskCell& cell) {
  return part / static_cast<double>(std::max<int64_t>(1, cell.instances));
}

double score(const TaskCell& cell) {
  return share(cell.score_sum, cell);
}

double exact_match(const TaskCell& cell) {
  return share(static_cast<double>(cell.correct), cell);
}

nlohmann::json cell_json(const TaskCell& cell, const TaskEvalOptions& options) {
  const Interval interval = wilson_95(cell.correct, cell.instances);
  nlohmann::json json = {{"length", cell.length},
                         {"prompt_tokens", cell.prompt_tokens},
                         {"correct", cell.correct},
                         {"instances", cell.instances},
                         {"exact_match", exact_match(cell)},
                         {"wilson_95", {interval.low, interval.high}},
                         {"score", score(cell)}};
  if (cell.depth) json["depth"] = *cell.depth;
  if (options.needle_score) {
    json["needle_score"] = share(cell.needle_sum, cell);
    json["needle_score_best_head"] = share(cell.needle_best_sum, cell);
  }
  return json;
}

constexpr int kColumn = 11;

std::string column(const std::string& text) {
  return fmt::format("{:>{}} ", text, kColumn - 1);
}

std::string percent(double share, bool colour) {
  const std::string text = column(fmt::format("{:.1f}", 100 * share));
  return colour ? heat(text, share) : text;
}

/// A row of the table: its name, then text(cell) for each cell.
template <typename Text>
std::string row(const std::string& name, const std::vector<TaskCell>& cells, const Text& text) {
  std::string line = fmt::format("{:<8}", name);
  for (const TaskCell& cell : cells) line += text(cell);
  return line + "\n";
}

std::vector<TaskCell> totals(const TaskResult& result) {
  std::vector<TaskCell> cells;
  for (const int64_t length : result.options.lengths) cells.push_back(result.total(length));
  return cells;
}

std::vector<TaskCell> at_depth(const TaskResult& result, double depth) {
  std::vector<TaskCell> cells;
  std::ranges::copy_if(result.cells, std::back_inserter(cells), [&](const auto& cell) { return cell.depth == depth; });
  return cells;
}

std::string title(const TaskResult& result, bool score_is_exact) {
  const TaskEvalOptions& options = result.options;
  return fmt::format("{}: {} in percent, {}{} per cell, windows {}\n\n", options.task,
                     score_is_exact ? "exact match" : "score", options.cell_tokens > 0 ? "at most " : "",
                     counted(options.instances, "instance"), options.expand_windows ? "expanded (SWE)" : "as trained");
}

std::string interval_text(const TaskCell& cell) {
  const Interval interval = wilson_95(cell.correct, cell.instances);
  return column(fmt::format("{:.1f}-{:.1f}", 100 * interval.low, 100 * interval.high));
}

}  // namespace

nlohmann::json to_json(const TaskResult& result) {
  const TaskEvalOptions& options = result.options;
  nlohmann::json json = {{"task", options.task},
                         {"seed", options.seed},
                         {"instances", options.instances},
                         {"expand_windows", options.expand_windows},
                         {"lengths", options.lengths},
                         {"depths", options.depths},
                         {"seconds", result.seconds},
                         {"cells", nlohmann::json::array()},
                         {"by_length", nlohmann::json::array()}};
  if (options.skip_end_of_text) json["skip_end_of_text"] = true;
  if (!options.settings.empty()) json["settings"] = options.settings;
  if (options.cell_tokens > 0) json["cell_tokens"] = options.cell_tokens;
  if (!options.haystack.empty()) json["haystack"] = options.haystack.string();
  for (const TaskCell& cell : result.cells) json["cells"].push_back(cell_json(cell, options));
  for (const TaskCell& cell : totals(result)) json["by_length"].push_back(cell_json(cell, options));
  return json;
}

std::string to_table(const TaskResult& result, bool colour) {
  const auto all = totals(result);
  const bool score_is_exact =
      std::ranges::all_of(all, [](const TaskCell& cell) { return score(cell) == exact_match(cell); });
  const auto scored = [&](const TaskCell& cell) { return percent(score(cell), colour); };
  const auto exact = [&](const TaskCell& cell) { return percent(exact_match(cell), colour); };
  std::string table = title(result, score_is_exact);
  table += row("depth", all, [](const TaskCell& cell) { return column(std::to_string(cell.length)); });
  table.insert(table.size() - 1, "  tokens");
  for (const double depth : result.options.depths) {
    table += row(fmt::format("{}", depth), at_depth(result, depth), scored);
  }
  table += row("all", all, scored);
  if (!score_is_exact) table += row("exact", all, exact);
  table += row("95%", all, interval_text);
  if (!result.options.needle_score) return table;
  const auto mean = [](const TaskCell& cell) { return percent(share(cell.needle_sum, cell), /*colour=*/false); };
  const auto best = [](const TaskCell& cell) { return percent(share(cell.needle_best_sum, cell), /*colour=*/false); };
  return table + "\nneedle score in percent: attention on the answer, mean of all heads and best head\n" +
         row("mean", all, mean) + row("best", all, best);
}

}  // namespace tamis::eval
