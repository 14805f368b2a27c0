#include "tamis/shootout/summary.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "tamis/base/version.h"
#include "tamis/data/registry.h"
#include "tamis/shootout/statistics.h"
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

/// The number at `path` of each run that has one.
std::vector<double> values_of(const std::vector<const json*>& runs, const json::json_pointer& path) {
  std::vector<double> values;
  for (const json* run : runs) {
    if (run->contains(path) && run->at(path).is_number()) values.push_back(run->at(path));
  }
  return values;
}

json spread_of(const std::vector<const json*>& runs, const json::json_pointer& path) {
  const std::vector<double> values = values_of(runs, path);
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
      const std::vector<double> scores = values_of(runs, json::json_pointer("/tasks") / task / i / "score");
      json cell = scores.empty() ? json() : score_spread(scores, cells[i].value("instances", int64_t{0}));
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

/// State bytes per additional token between the first and the last length; null for a single length.
json bytes_per_token(const json& states) {
  const double tokens = states.back()["length"].get<double>() - states.front()["length"].get<double>();
  if (tokens <= 0) return {};
  return (states.back()["bytes"].get<double>() - states.front()["bytes"].get<double>()) / tokens;
}

/// "lowest" or "highest" if the chosen rate is at that end of the grid, so that a rate beyond it may be better. Null
/// inside the grid and for a single rate.
json edge_of(const json& search, double chosen) {
  const auto rate = [](const json& run) { return run["lr"].get<double>(); };
  const bool lower = std::ranges::any_of(search, [&](const json& run) { return rate(run) < chosen; });
  const bool higher = std::ranges::any_of(search, [&](const json& run) { return rate(run) > chosen; });
  if (lower == higher) return {};
  return lower ? "highest" : "lowest";
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
  entry["lr_edge"] = edge_of(entry["search"], *lr);
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

/// Score and loss of random guessing, for tasks whose answers are drawn uniformly from a known set of ids.
json chances(const ShootoutRecipe& recipe) {
  json result = {{"score", json::object()}, {"loss", json::object()}};
  const auto choices = [](const std::string& name, const data::Settings& settings) -> std::optional<double> {
    const data::Task& task = data::find_task(name);
    const auto* tokens = std::get_if<data::TokenTask>(&task.kind);
    if (tokens == nullptr) return std::nullopt;
    data::Settings all;
    for (const data::Setting& setting : task.settings) all[setting.name] = setting.value;
    for (const auto& [key, value] : settings) all[key] = value;
    return static_cast<double>(tokens->choices(all));
  };
  for (const eval::TaskEvalOptions& task : recipe.tasks) {
    if (const auto ids = choices(task.task, task.settings)) result["score"][task.task] = 1 / *ids;
  }
  for (const train::SourceRecipe& source : recipe.mixers.front().recipe.data.sources) {
    if (!source.is_task()) continue;
    if (const auto ids = choices(source.kind, source.task.settings)) result["loss"][source.name] = std::log(*ids);
  }
  return result;
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
                  {"chance", chances(recipe)},
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

}  // namespace tamis::shootout
