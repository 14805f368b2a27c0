#include "tamis/shootout/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "tamis/base/terminal.h"
#include "tamis/base/version.h"
#include "tamis/train/machine.h"

namespace tamis::shootout {
namespace {

using nlohmann::json;

bool is_done(const json& result) {
  return result.value("status", "") == "done";
}

const json* find(const Results& results, const std::string& name) {
  const auto found = results.find(name);
  return found == results.end() ? nullptr : &found->second;
}

/// {"mean", "sd", "n"}; sd is null for fewer than two.
json spread(const std::vector<double>& values) {
  const auto n = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / n;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {
      {"mean", mean}, {"sd", values.size() < 2 ? json() : json(std::sqrt(squares / (n - 1)))}, {"n", values.size()}};
}

/// Means over the seeds of what `path` holds in each run.
json spread_of(const std::vector<const json*>& runs, const json::json_pointer& path) {
  std::vector<double> values;
  for (const json* run : runs) {
    if (run->contains(path) && run->at(path).is_number()) values.push_back(run->at(path));
  }
  return values.empty() ? json() : spread(values);
}

json summary_of(const std::vector<const json*>& runs) {
  json summary = {{"tokens_per_second", spread_of(runs, "/tokens_per_second"_json_pointer)}};
  const json& any = *runs.front();
  for (const auto& [source, loss] : any["validation"].items()) {
    summary["validation"][source] = spread_of(runs, json::json_pointer("/validation") / source);
  }
  const json positions = any.value("by_position", json::object());
  for (const auto& [source, bins] : positions.items()) {
    for (size_t i = 0; i < bins.size(); ++i) {
      json bin = spread_of(runs, json::json_pointer("/by_position") / source / i / "loss");
      bin["first"] = bins[i]["first"];
      bin["last"] = bins[i]["last"];
      summary["by_position"][source].push_back(std::move(bin));
    }
  }
  const json tasks = any.value("tasks", json::object());
  for (const auto& [task, cells] : tasks.items()) {
    for (size_t i = 0; i < cells.size(); ++i) {
      json cell = spread_of(runs, json::json_pointer("/tasks") / task / i / "score");
      cell["length"] = cells[i]["length"];
      summary["tasks"][task].push_back(std::move(cell));
    }
  }
  return summary;
}

json run_of(const Job& job, const json* result) {
  json run = {{"seed", job.recipe.train.seed}, {"lr", job.recipe.train.lr}, {"status", "missing"}};
  if (result == nullptr) return run;
  for (const char* key :
       {"status", "reason", "seconds", "tokens_per_second", "threads", "validation", "by_position", "curve", "tasks"}) {
    if (result->contains(key)) run[key] = (*result)[key];
  }
  return run;
}

json search_of(const Job& job, const json* result) {
  return {{"lr", job.recipe.train.lr},
          {"steps", job.recipe.train.steps},
          {"status", result == nullptr ? "missing" : result->value("status", "missing")},
          {"loss", result != nullptr && is_done(*result) ? (*result)["loss"] : json()}};
}

/// Bytes that a token more costs, from the first to the last length; null for one length alone.
json bytes_per_token(const json& states) {
  const double tokens = states.back()["length"].get<double>() - states.front()["length"].get<double>();
  if (tokens <= 0) return {};
  return (states.back()["bytes"].get<double>() - states.front()["bytes"].get<double>()) / tokens;
}

json mixer_of(const ShootoutRecipe& recipe, size_t index, const Results& results) {
  const MixerRecipe& mixer = recipe.mixers[index];
  json entry = {{"name", mixer.name},
                {"model_type", mixer.recipe.model["model_type"]},
                {"config", mixer.recipe.model},
                {"parameters", mixer.parameters.total},
                {"parameters_without_embedding", mixer.parameters.without_embedding},
                {"search", json::array()},
                {"runs", json::array()}};
  for (const Job& job : search_jobs(recipe, index)) entry["search"].push_back(search_of(job, find(results, job.name)));
  const auto lr = choose_lr(recipe, index, results);
  entry["chosen_lr"] = lr ? json(*lr) : json();
  if (!lr) return entry;
  std::vector<const json*> done;
  for (const Job& job : final_jobs(recipe, index, *lr)) {
    const json* result = find(results, job.name);
    entry["runs"].push_back(run_of(job, result));
    if (result != nullptr && is_done(*result)) done.push_back(result);
  }
  if (done.empty()) return entry;
  for (const char* key : {"flops_per_token", "state_bytes"}) entry[key] = (*done.front())[key];
  entry["state_bytes_per_token"] = bytes_per_token(entry["state_bytes"]);
  entry["summary"] = summary_of(done);
  return entry;
}

/// Rows of cells as a Markdown table whose columns stand below each other: the first to the left, others to the right.
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

/// The learning rate, and what became of runs that did not end.
std::string status_of(const json& mixer) {
  const auto count = [](const json& runs, const char* status) {
    return std::ranges::count_if(runs, [&](const json& run) { return run["status"] == status; });
  };
  if (!mixer["chosen_lr"].is_number()) return count(mixer["search"], "missing") > 0 ? "..." : "diverged";
  std::string status = fmt::format("{}", mixer["chosen_lr"].get<double>());
  for (const char* what : {"diverged", "missing"}) {
    const auto runs = count(mixer["runs"], what);
    if (runs > 0) status += fmt::format(" ({} of {} {})", runs, mixer["runs"].size(), what);
  }
  return status;
}

/// True when runs had different numbers of threads: their speeds cannot be compared.
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

/// A row of each mixer: its name, then a number for every cell of the first that has them.
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

}  // namespace

bool searched(const ShootoutRecipe& recipe, size_t mixer, const Results& results) {
  const auto jobs = search_jobs(recipe, mixer);
  return std::ranges::all_of(jobs, [&](const Job& job) { return results.contains(job.name); });
}

std::optional<double> choose_lr(const ShootoutRecipe& recipe, size_t mixer, const Results& results) {
  if (!searched(recipe, mixer, results)) return std::nullopt;
  std::optional<double> chosen;
  double least = 0;
  for (const Job& job : search_jobs(recipe, mixer)) {
    const json& result = results.at(job.name);
    if (!is_done(result) || !result["loss"].is_number()) continue;
    if (chosen && result["loss"] >= least) continue;
    chosen = job.recipe.train.lr;
    least = result["loss"];
  }
  return chosen;
}

json summarise(const ShootoutRecipe& recipe, const Results& results) {
  const train::TrainRecipe& train = recipe.mixers.front().recipe.train;
  json summary = {{"version", kVersion},
                  {"title", recipe.dir.filename().string()},
                  {"done", results.size()},
                  {"jobs", count_jobs(recipe)},
                  {"train",
                   {{"length", train.length},
                    {"steps", train.steps},
                    {"batch_tokens", train.batch_tokens},
                    {"tokens", train.steps * train.batch_tokens}}},
                  {"task_lengths", json::object()},
                  {"lr_grid", recipe.lr},
                  {"seeds", recipe.seeds},
                  {"machine", train::describe_machine()},
                  {"recipe", recipe.toml},
                  {"mixers", json::array()}};
  for (const eval::TaskEvalOptions& options : recipe.tasks) {
    summary["task_lengths"][options.task] = options.lengths.front() / recipe.evaluation.multiples.front();
  }
  for (size_t i = 0; i < recipe.mixers.size(); ++i) summary["mixers"].push_back(mixer_of(recipe, i, results));
  return summary;
}

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
  return text;
}

}  // namespace tamis::shootout
