// How a result of ABCDigits is written: JSON for programs, a table for people.

#include <fmt/format.h>

#include <algorithm>

#include "tamis/base/terminal.h"
#include "tamis/eval/abc_digits_eval.h"
#include "tamis/eval/interval.h"

namespace tamis::eval {
namespace {

double exact_match(const AbcDigitsCell& cell) {
  return static_cast<double>(cell.correct) / static_cast<double>(std::max<int64_t>(1, cell.instances));
}

nlohmann::json cell_json(const AbcDigitsCell& cell) {
  const Interval interval = wilson_95(cell.correct, cell.instances);
  return {{"length", cell.length},
          {"prompt_tokens", cell.prompt_tokens},
          {"correct", cell.correct},
          {"instances", cell.instances},
          {"exact_match", exact_match(cell)},
          {"wilson_95", {interval.low, interval.high}}};
}

constexpr int kColumn = 11;

std::string percent(const AbcDigitsCell& cell, bool colour) {
  const double share = exact_match(cell);
  const std::string text = fmt::format("{:>{}.1f} ", 100 * share, kColumn - 1);
  return colour ? heat(text, share) : text;
}

}  // namespace

nlohmann::json to_json(const AbcDigitsResult& result) {
  const AbcDigitsEvalOptions& options = result.options;
  nlohmann::json json = {{"task", "abc_digits"},
                         {"seed", options.seed},
                         {"instances", options.instances},
                         {"expand_windows", options.expand_windows},
                         {"lengths", options.lengths},
                         {"depths", options.depths},
                         {"seconds", result.seconds},
                         {"cells", nlohmann::json::array()},
                         {"by_length", nlohmann::json::array()}};
  for (const AbcDigitsCell& cell : result.cells) {
    nlohmann::json entry = cell_json(cell);
    entry["depth"] = cell.depth;
    json["cells"].push_back(std::move(entry));
  }
  for (const int64_t length : options.lengths) json["by_length"].push_back(cell_json(result.total(length)));
  return json;
}

std::string to_table(const AbcDigitsResult& result, bool colour) {
  const AbcDigitsEvalOptions& options = result.options;
  std::string table = fmt::format("ABCDigits: exact match in percent, {} instances a cell, windows {}\n\n{:<8}",
                                  options.instances, options.expand_windows ? "expanded (SWE)" : "as trained", "depth");
  for (const int64_t length : options.lengths) table += fmt::format("{:>{}} ", length, kColumn - 1);
  table += "  tokens\n";
  for (size_t d = 0; d < options.depths.size(); ++d) {
    table += fmt::format("{:<8}", options.depths[d]);
    for (size_t l = 0; l < options.lengths.size(); ++l) {
      table += percent(result.cells[l * options.depths.size() + d], colour);
    }
    table += "\n";
  }
  table += fmt::format("{:<8}", "all");
  for (const int64_t length : options.lengths) table += percent(result.total(length), colour);
  table += fmt::format("\n{:<8}", "95%");
  for (const int64_t length : options.lengths) {
    const AbcDigitsCell total = result.total(length);
    const Interval interval = wilson_95(total.correct, total.instances);
    table += fmt::format("{:>{}} ", fmt::format("{:.1f}-{:.1f}", 100 * interval.low, 100 * interval.high), kColumn - 1);
  }
  return table + "\n";
}

}  // namespace tamis::eval
