#include "tamis/study/stored.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/study/claims.h"
#include "tamis/study/figures.h"
#include "tamis/study/options.h"
#include "tamis/train/machine.h"
#include "tamis/train/toml.h"

namespace tamis::study {
namespace {

using nlohmann::json;

/// What lists and pages read of study.json, with the type of each, as nlohmann names it. Without claims verdict is
/// null.
const std::map<std::string, std::string> kTypes = {
    {"title", "string"},   {"paper", "string"},   {"question", "string"},       {"command", "string"},
    {"tier", "string"},    {"claims", "array"},   {"figures", "array"},         {"tables", "array"},
    {"drawn", "array"},    {"points", "array"},   {"has_model", "boolean"},     {"claim_changes", "array"},
    {"machine", "object"}, {"done", "number"},    {"jobs", "number"},           {"seconds", "number"},
    {"failed", "array"},   {"version", "string"}, {"commit", "string"},         {"assumptions", "array"},
    {"time", "string"},    {"recipe", "string"},  {"verdict", "string or null"}};

/// How a line of a stored recipe begins that has a setting of the command line.
constexpr std::string_view kSetting = "# --set ";

/// Tables of a recipe, and keys of [study], that have no influence on what is measured.
const std::vector<std::string> kShownTables = {"claims", "figures", "tables"};
const std::vector<std::string> kShownKeys = {"title", "question", "paper", "assumptions"};
const std::vector<std::string> kOtherKeys = {"seconds", "prepare", "dir", "runs"};

bool has(const json& list, const json& value) {
  return std::ranges::find(list, value) != list.end();
}

/// Of the stored recipe; none when it is damaged, or of a version whose recipes are no longer read.
std::optional<json> values_then(const json& study) {
  try {
    return values_of_tier(train::parse_toml(study["recipe"], "study.json"), study["tier"]);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Claims by id, as the recipe of a stored study states them.
json stated_claims(const json& study) {
  json stated = json::object();
  size_t count = 0;
  for (const json& claim : values_then(study).value_or(json::object()).value("claims", json::array())) {
    stated[text_at(claim, "id", fmt::format("claim-{}", ++count))] = claim;
  }
  return stated;
}

/// What figures, tables and claims read: their metrics, and their x, which is a column or another metric. Of the values
/// of a recipe, or of a study.
std::set<std::string> read_names(const json& from) {
  std::set<std::string> names;
  for (const std::string& table : kShownTables) {
    for (const json& each : from.value(table, json::array())) {
      for (const char* key : {"metric", "x"}) names.insert(text_at(each, key));
    }
  }
  names.erase("");
  return names;
}

/// Whether there are results for all these names of metrics and columns.
bool has_results(const std::set<std::string>& names, const std::filesystem::path& directory) {
  if (names.empty()) return true;
  const std::filesystem::path file = directory / "results.csv";
  if (!std::filesystem::exists(file)) return false;
  std::set<std::string> found;
  for (const json& row : from_csv(read_file(file))) {
    found.insert(text_at(row, "metric"));
    for (const auto& [column, value] : row.items()) found.insert(column);
  }
  return std::ranges::includes(found, names);
}

/// Takes what is shown out of `values` and returns it.
json take_shown(json& values) {
  json shown = json::object();
  for (const std::string& table : kShownTables) {
    shown[table] = values.value(table, json::array());
    values.erase(table);
  }
  json& about = values["study"];
  if (!about.is_object()) about = json::object();
  for (const std::string& key : kShownKeys) {
    shown[key] = about.value(key, json());
    about.erase(key);
  }
  for (const std::string& key : kOtherKeys) about.erase(key);
  return shown;
}

/// The lines `# --set ...` at the end of a stored recipe, where the settings of the command line stand, maybe with
/// the tier.
std::vector<std::string> last_settings(const std::string& recipe) {
  std::vector<std::string> settings;
  std::istringstream lines(recipe);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(kSetting)) {
      settings.push_back(line);
    } else if (!line.starts_with("# --tier ")) {
      settings.clear();
    }
  }
  return settings;
}

/// The settings that the text `before` has after those at the end of `recipe`.
std::vector<std::string> more_settings(const std::string& recipe, const std::string& before) {
  const std::vector<std::string> own = last_settings(recipe), all = last_settings(before);
  const bool same = own.size() <= all.size() && std::ranges::equal(own, std::span(all).first(own.size()));
  const auto more = std::span(all).subspan(same ? own.size() : 0);
  return {more.begin(), more.end()};
}

/// The recipe, with the settings of the command line with which the study ran.
std::string with_settings(const std::string& recipe, const std::string& before) {
  std::string text = recipe;
  for (const std::string& line : more_settings(recipe, before)) text += line + "\n";
  return text;
}

/// Notes how claims differ from those that were stated before.
void note_changes(json& list, const json& before, const json& now, const json& results) {
  const std::vector<std::string> changes = claim_changes(before, now);
  if (changes.empty()) return;
  list.push_back({{"time", train::utc_now()},
                  {"results", results},
                  {"what", fmt::format("{}", fmt::join(changes, ", "))},
                  {"before", before}});
}

void judge_again(const StudyRecipe& recipe, json& study, const Rows& rows) {
  json now = json::object();
  for (const Claim& claim : recipe.claims) now[claim.id] = claim.stated;
  study["claims"] = judge_all(recipe.claims, rows);
  study["verdict"] = overall_verdict(study["claims"]);
  note_changes(study["claim_changes"], stated_claims(study), now, study["done"]);
}

/// Draws the figures that have changed or were not drawn before. One that cannot be drawn now, because matplotlib is
/// missing, keeps its drawing and the definition that was drawn, so that the next book tries again.
void draw_again(const StudyRecipe& recipe, json& study, const Rows& rows, const std::filesystem::path& directory,
                std::FILE* messages) {
  const json before = study["figures"], drawn_before = study["drawn"];
  const auto svg = [&](const std::string& id) { return directory / (id + ".svg"); };
  const auto is_drawn = [&](const json& id) { return has(drawn_before, id) && std::filesystem::exists(svg(id)); };
  json due = json::array();
  for (const json& figure : recipe.figures) {
    if (!has(before, figure) || !is_drawn(figure["id"])) due.push_back(figure);
  }
  const std::vector<std::string> drawn_now = draw(due, rows, directory, messages);
  study["figures"] = json::array();
  study["drawn"] = json::array();
  for (const json& figure : recipe.figures) {
    const std::string id = figure["id"];
    std::filesystem::remove(directory / (id + ".pdf"));  // a book has SVG only
    const bool current = !has(due, figure) || std::ranges::find(drawn_now, id) != drawn_now.end();
    const auto old = std::ranges::find_if(before, [&](const json& each) { return text_at(each, "id") == id; });
    const bool outdated = !current && old != before.end() && is_drawn(id);
    study["figures"].push_back(outdated ? *old : figure);
    if (current || outdated) study["drawn"].push_back(id);
  }
}

}  // namespace

json stored_study(const std::filesystem::path& directory) {
  const json study = try_read_object(directory / "study.json").value_or(json::object());
  const bool whole = std::ranges::all_of(kTypes, [&](const auto& item) {
    const auto& [key, type] = item;
    return study.contains(key) && type.find(study[key].type_name()) != std::string::npos;
  });
  return whole && std::ranges::all_of(study["drawn"], &json::is_string) ? study : json();
}

std::filesystem::path newest_result(const std::string& id, const std::string& tier) {
  const std::string name = tier == tiers().front() ? id : id + "-" + tier;
  const std::filesystem::path run = std::filesystem::path("runs") / name,
                              book = std::filesystem::path("docs/results") / name;
  const auto time = [](const std::filesystem::path& directory) {
    const json study = stored_study(directory);
    return study.is_object() ? text_at(study, "time") : "";
  };
  return time(run) < time(book) ? book : run;
}

std::string folder_of_runs(const json& study) {
  const std::string own = "runs/" + text_at(study, "id");
  const json values = values_then(study).value_or(json::object()), about = values.value("study", json::object());
  return text_at(about, "runs", text_at(about, "dir", own));
}

double number_at(const json& object, const char* key, double fallback) {
  if (!object.is_object()) return fallback;
  const json value = object.value(key, json());
  return value.is_number() ? value.get<double>() : fallback;
}

std::vector<std::string> settings_of(const json& study, const std::filesystem::path& recipe) {
  std::vector<std::string> settings = more_settings(read_file(recipe), text_at(study, "recipe"));
  for (std::string& setting : settings) setting.erase(0, kSetting.size());
  return settings;
}

std::optional<NotedCheck> noted_check(const json& study) {
  const json check = study.value("check", json());
  if (!check.is_object() || !check.value("same", json()).is_boolean()) return std::nullopt;
  NotedCheck noted = {.run = text_at(check, "run"),
                      .same = check["same"],
                      .differences = {},
                      .machine = check.value("machine", json()),
                      .version = text_at(check, "version"),
                      .commit = text_at(check, "commit"),
                      .time = text_at(check, "time")};
  if (!noted.machine.is_object()) noted.machine = json::object();
  for (const json& each : check.value("differences", json())) noted.differences.push_back(plain_text(each));
  return noted;
}

json to_json(const NotedCheck& check) {
  return {{"run", check.run},         {"same", check.same},       {"differences", check.differences},
          {"machine", check.machine}, {"version", check.version}, {"commit", check.commit},
          {"time", check.time}};
}

std::string first_of(const std::vector<std::string>& texts) {
  constexpr size_t kMost = 5;
  if (texts.size() <= kMost) return fmt::format("{}", fmt::join(texts, "; "));
  return fmt::format("{}; and {} more", fmt::join(std::span(texts).first(kMost), "; "), texts.size() - kMost);
}

void keep_origin(json& study, const std::filesystem::path& directory) {
  const json before = stored_study(directory);
  if (before.is_null() || before["done"] != study["done"]) return;
  for (const char* key : {"version", "commit", "time", "machine", "check"}) {
    if (before.contains(key)) study[key] = before[key];
  }
}

void keep_claim_changes(json& study, const std::filesystem::path& directory) {
  const json before = stored_study(directory);
  if (before.is_null()) return;
  json changes = before["claim_changes"];
  const json& own = study["claim_changes"];
  if (own.empty() || !has(changes, own.back())) {  // the page is not of these runs
    const json first = own.empty() ? json() : own.front().value("before", json());
    note_changes(changes, stated_claims(before), first.is_object() ? first : stated_claims(study), before["done"]);
  }
  for (const json& change : own) {
    if (!has(changes, change)) changes.push_back(change);
  }
  study["claim_changes"] = std::move(changes);
}

bool runs_two_at_a_time(const json& study) {
  return number_at(study, "jobs") > 1 && study.value("threads", json()) == json::array({1});
}

std::string command_of(const json& study) {
  const std::string command = text_at(study, "command");
  const bool add = text_at(study, "tier") == tiers().front() && runs_two_at_a_time(study) &&
                   command.find(" --jobs ") == std::string::npos;
  return add ? command + " --jobs 2" : command;
}

double seconds_on_two_cores(const json& study) {
  const double seconds = number_at(study, "seconds");
  if (!runs_two_at_a_time(study)) return seconds;
  return number_at(study, "processor_seconds", seconds) / 2;
}

double seconds_of_all_runs(const std::vector<json>& studies) {
  std::map<std::string, double> runs;
  for (const json& study : studies) {
    const double seconds = number_at(study, "seconds");
    if (seconds <= 0) continue;
    const double on_two_cores = seconds_on_two_cores(study) / seconds;  // per second of a run
    const std::string folder = folder_of_runs(study);
    for (const json& point : study.value("points", json::array())) {
      double& most = runs[fmt::format("{}/{}/{}", folder, text_at(point, "name"), text_at(point, "chosen"))];
      most = std::max(most, number_at(point, "seconds") * on_two_cores);
    }
  }
  double sum = 0;
  for (const auto& [run, seconds] : runs) sum += seconds;
  return sum;
}

std::set<std::string> shown_metrics(const json& study) {
  std::set<std::string> names = read_names(study);
  names.merge(read_names(values_then(study).value_or(json::object())));  // x of claims stands there only
  return names;
}

RecipeChange change_since(const json& study, const std::filesystem::path& directory,
                          const std::filesystem::path& recipe) {
  std::optional<json> then = values_then(study);
  if (!then) return RecipeChange::kMeasured;
  json now = values_of_tier(train::read_toml(recipe), study["tier"]);
  std::set<std::string> added = read_names(now);
  for (const std::string& name : read_names(*then)) added.erase(name);
  const json shown_then = take_shown(*then), shown_now = take_shown(now);
  if (*then != now || !has_results(added, directory)) return RecipeChange::kMeasured;
  return shown_then == shown_now ? RecipeChange::kNone : RecipeChange::kShown;
}

void remove_undrawn(const json& study, const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> undrawn;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::filesystem::path& file = entry.path();
    if (file.extension() == ".svg" && !has(study["drawn"], file.stem().string())) undrawn.push_back(file);
  }
  for (const std::filesystem::path& file : undrawn) std::filesystem::remove(file);
}

json shown_by(const StudyRecipe& recipe, json study, const Rows& rows, const std::filesystem::path& directory,
              std::FILE* messages) {
  judge_again(recipe, study, rows);
  draw_again(recipe, study, rows, directory, messages);
  study["tables"] = recipe.tables;
  study["title"] = recipe.title;
  study["question"] = recipe.question;
  study["paper"] = recipe.paper;
  study["assumptions"] = recipe.assumptions;
  study["prepare"] = recipe.prepare;
  study["recipe"] = with_settings(recipe.toml, study["recipe"]);
  return study;
}

}  // namespace tamis::study
