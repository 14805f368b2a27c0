#include "tamis/shootout/tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "tamis/base/terminal.h"

namespace tamis::shootout {
namespace {

using nlohmann::json;

/// A Markdown table with aligned columns: the first left-aligned, the others right-aligned.
std::string table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths(rows.front().size(), 3);
  for (const auto& row : rows) {
    for (size_t c = 0; c < row.size(); ++c) widths[c] = std::max(widths[c], row[c].size());
  }
  const auto line = [&](const std::vector<std::string>& row) {
    std::string text = "|";
    for (size_t c = 0; c < row.size(); ++c) {
      text += c == 0 ? fmt::format(" {:<{}} |", row[c], widths[c]) : fmt::format(" {:>{}} |", row[c], widths[c]);
    }
    return text + "\n";
  };
  std::string text = line(rows.front()) + "|";
  for (size_t c = 0; c < widths.size(); ++c) text += std::string(widths[c] + 1, '-') + (c == 0 ? "-|" : ":|");
  text += "\n";
  for (size_t r = 1; r < rows.size(); ++r) text += line(rows[r]);
  return text;
}

/// `0.123`, `0.123 +- 0.004`, `-`.
std::string number(const json& cell, double factor, int digits) {
  if (!cell.is_object() || !cell.contains("mean")) return "-";
  const std::string mean = fmt::format("{:.{}f}", factor * cell["mean"].get<double>(), digits);
  if (!cell["sd"].is_number()) return mean;
  return fmt::format("{} +- {:.{}f}", mean, factor * cell["sd"].get<double>(), digits);
}

const json* last_of(const json& mixer, const char* key) {
  return mixer.contains(key) && !mixer[key].empty() ? &mixer[key].back() : nullptr;
}

/// The learning rate, and the numbers of diverged and missing runs.
std::string status_of(const json& mixer) {
  const auto count = [](const json& runs, const char* status) {
    return std::ranges::count_if(runs, [&](const json& run) { return run["status"] == status; });
  };
  if (!mixer["chosen_lr"].is_number()) return count(mixer["search"], "missing") > 0 ? "..." : "diverged";
  std::string status = fmt::format("{}", mixer["chosen_lr"].get<double>());
  if (mixer["lr_edge"].is_string()) status += " (edge)";
  for (const char* what : {"diverged", "missing"}) {
    const auto runs = count(mixer["runs"], what);
    if (runs > 0) status += fmt::format(" ({} of {} {})", runs, mixer["runs"].size(), what);
  }
  return status;
}

/// True when runs used different numbers of threads, so that their speeds are not comparable.
bool threads_differ(const json& summary) {
  json first;
  for (const json& mixer : summary["mixers"]) {
    for (const json& run : mixer["runs"]) {
      const json threads = run.value("threads", json());
      if (threads.is_null()) continue;
      if (!first.is_null() && first != threads) return true;
      first = threads;
    }
  }
  return false;
}

std::string losses_and_costs(const json& summary) {
  std::vector<std::string> sources;
  for (const json& mixer : summary["mixers"]) {
    const json losses = mixer.value("/summary/validation"_json_pointer, json::object());
    for (const auto& [source, loss] : losses.items()) {
      if (std::ranges::find(sources, source) == sources.end()) sources.push_back(source);
    }
  }
  std::vector<std::string> head = {"mixer", "lr", "parameters"};
  for (const std::string& source : sources) head.push_back("loss " + source);
  head.push_back(threads_differ(summary) ? "tokens/s (threads differ)" : "tokens/s");
  for (const char* cost : {"MFLOP/token", "state bytes/token", "state at the longest"}) head.push_back(cost);
  std::vector<std::vector<std::string>> rows = {head};
  for (const json& mixer : summary["mixers"]) {
    const json means = mixer.value("summary", json::object());
    std::vector<std::string> row = {mixer["name"], status_of(mixer),
                                    fmt::format("{}", mixer["parameters_without_embedding"].get<int64_t>())};
    for (const std::string& source : sources) {
      row.push_back(number(means.value(json::json_pointer("/validation") / source, json()), 1, 3));
    }
    row.push_back(number(means.value("tokens_per_second", json()), 1, 0));
    const json* state = last_of(mixer, "state_bytes");
    row.push_back(mixer.contains("flops_per_token")
                      ? fmt::format("{:.3f}", mixer["flops_per_token"].front()["flops"].get<double>() / 1e6)
                      : "-");
    const json each = mixer.value("state_bytes_per_token", json());
    row.push_back(each.is_number() ? fmt::format("{:.0f}", each.get<double>()) : "-");
    row.push_back(state == nullptr ? "-" : format_bytes((*state)["bytes"].get<double>()));
    rows.push_back(std::move(row));
  }
  return table(rows);
}

/// A table with a row per mixer: its name, then the numbers of the cells at `path`, as many as `head` has columns.
std::string cells_table(const json& summary, std::vector<std::string> head, const json::json_pointer& path,
                        double factor, int digits) {
  std::vector<std::vector<std::string>> rows = {std::move(head)};
  for (const json& mixer : summary["mixers"]) {
    std::vector<std::string> row = {mixer["name"]};
    const json cells = mixer.value(path, json::array());
    for (size_t i = 0; i + 1 < rows.front().size(); ++i) {
      row.push_back(number(i < cells.size() ? cells[i] : json(), factor, digits));
    }
    rows.push_back(std::move(row));
  }
  return table(rows);
}

std::string position_table(const json& summary, const std::string& source, const json& bins) {
  std::vector<std::string> head = {"loss " + source + " after"};
  for (const json& bin : bins) {
    const auto first = bin["first"].get<int64_t>(), last = bin["last"].get<int64_t>();
    head.push_back(first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last));
  }
  return cells_table(summary, std::move(head), json::json_pointer("/summary/by_position") / source, 1, 3);
}

std::string task_table(const json& summary, const std::string& task, const json& lengths) {
  std::vector<std::string> head = {task + ", %"};
  for (const json& cell : lengths) head.push_back(fmt::format("{}", cell["length"].get<int64_t>()));
  return cells_table(summary, std::move(head), json::json_pointer("/summary/tasks") / task, 100, 1);
}

/// A line for each mixer whose best rate may lie beyond the grid.
std::string edge_warnings(const json& summary) {
  std::string text;
  for (const json& mixer : summary["mixers"]) {
    const json edge = mixer.value("lr_edge", json());
    if (!edge.is_string()) continue;
    const bool highest = edge == "highest";
    text +=
        fmt::format("{} has its best result at the {} rate of the grid, {}: {} may be better; add one to shootout.lr\n",
                    mixer["name"].get<std::string>(), edge.get<std::string>(), mixer["chosen_lr"].get<double>(),
                    highest ? "a higher one" : "a lower one");
  }
  return text;
}

}  // namespace

std::string to_markdown(const json& summary) {
  std::string text = losses_and_costs(summary);
  json tasks = json::object(), positions = json::object();
  for (const json& mixer : summary["mixers"]) {
    tasks.update(mixer.value("/summary/tasks"_json_pointer, json::object()));
    positions.update(mixer.value("/summary/by_position"_json_pointer, json::object()));
  }
  for (const auto& [source, bins] : positions.items()) {
    text += '\n';
    text += position_table(summary, source, bins);
  }
  for (const auto& [task, cells] : tasks.items()) {
    text += '\n';
    text += task_table(summary, task, cells);
  }
  if (const std::string warnings = edge_warnings(summary); !warnings.empty()) text += "\n" + warnings;
  return text;
}

}  // namespace tamis::shootout
