#include "tamis/study/book.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <optional>
#include <set>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/base/terminal.h"
#include "tamis/study/options.h"
#include "tamis/study/page.h"
#include "tamis/study/stored.h"
#include "tamis/train/toml.h"

namespace tamis::study {
namespace {

using nlohmann::json;

bool is_outdated(const json& study, const std::filesystem::path& directory, const std::filesystem::path& recipe) {
  return change_since(study, directory, recipe) == RecipeChange::kMeasured;
}

/// Rows that the page shows: those of metrics in figures, tables and claims, and all that are not curves.
json shown_rows(const json& study, const json& rows) {
  const std::set<std::string> metrics = shown_metrics(study);
  json kept = json::array();
  for (const json& row : rows) {
    const std::string metric = text_at(row, "metric");
    if (metrics.contains(metric) || !(row.contains("step") || row.contains("tensor"))) kept.push_back(row);
  }
  return kept;
}

/// A study under runs/ becomes a page.
void write_page(json study, const std::filesystem::path& run, const std::filesystem::path& directory) {
  const std::string name = run.filename().string();
  keep_claim_changes(study, directory / name);
  const json rows = shown_rows(study, parse_json(read_file(run / "results.json"), (run / "results.json").string()));
  const Rows table(rows.begin(), rows.end());
  make_directories(directory / name);
  for (const json& id : study["drawn"]) {
    const std::string file = id.get<std::string>() + ".svg";
    write_file_atomic(directory / name / file, read_file(run / "figures" / file));
  }
  write_file_atomic(directory / name / "results.csv", to_csv(table));
  write_file_atomic(directory / name / "study.json", json_text(study, 1));
  write_file_atomic(directory / (name + ".md"), to_markdown(study, table, name));
  remove_undrawn(study, directory / name);
}

/// Writes a page again whose study is no longer under runs/, as today's recipe shows it.
void write_again(const json& study, const std::filesystem::path& recipe, const std::filesystem::path& directory,
                 const std::string& name) {
  const Rows rows = from_csv(read_file(directory / name / "results.csv"));
  const StudyRecipe loaded = load_study(recipe, {}, text_at(study, "tier"), train::RecipeUse::kPlan);
  const json now = shown_by(loaded, study, rows, directory / name, stderr);
  write_file_atomic(directory / name / "study.json", json_text(now, 1));
  write_file_atomic(directory / (name + ".md"), to_markdown(now, rows, name));
  remove_undrawn(now, directory / name);
}

/// Verdicts by paper, and the time, of studies of the first tier.
std::string summary_of(const std::vector<json>& studies) {
  struct Paper {
    int64_t studies = 0;
    std::map<std::string, int64_t> verdicts;
    double seconds = 0;
  };
  std::map<std::string, Paper> papers;
  Paper all;
  for (const json& study : studies) {
    const std::string source = text_at(study, "paper");  // the title, then what in it
    const std::string title = source.substr(0, std::min({source.find(','), source.find(" ("), source.find(": ")}));
    for (Paper* paper : {&papers[title.empty() ? "none" : title], &all}) {
      ++paper->studies;
      paper->seconds += seconds_on_two_cores(study);
      for (const json& claim : study["claims"]) ++paper->verdicts[text_at(claim, "verdict")];
    }
  }
  std::string text =
      "| paper | studies | holds | does not hold | undecided | time on two cores |\n|---|---|---|---|---|---|\n";
  const auto add = [&](const std::string& title, Paper& paper) {
    text += fmt::format("| {} | {} | {} | {} | {} | {} |\n", title, paper.studies, paper.verdicts["holds"],
                        paper.verdicts["does not hold"], paper.verdicts["undecided"], format_duration(paper.seconds));
  };
  for (auto& [title, paper] : papers) add(title, paper);
  all.seconds = seconds_of_all_runs(studies);
  add("All papers", all);
  return text +
         fmt::format(
             "\nThese are the studies of the tier {}. Times are for two cores: where a study has several runs of "
             "one thread each, two run at a time (`--jobs 2`), in half of\nthe processor time on the page; else the "
             "wall-clock "
             "time on the page, with what else the machine did. Runs that several studies share\nare counted in "
             "each, and once in the last row.\n\n",
             tiers().front());
}

std::vector<json> of_first_tier(std::vector<json> studies) {
  std::erase_if(studies, [](const json& study) { return text_at(study, "tier") != tiers().front(); });
  return studies;
}

/// `8ba0599252b1; a repetition with 4ca9d0ed2c11 agrees`
std::string version_of(const json& study, bool is_outdated) {
  const std::string version = text_at(study, "commit");
  if (is_outdated) return version + ", recipe changed since";
  const std::optional<NotedCheck> check = noted_check(study);
  if (!check || (check->same && check->commit == version)) return version;
  return fmt::format("{}; a repetition with {} {}", version, check->commit, check->same ? "agrees" : "differs");
}

/// Whether a claim was added or changed when results of its study existed.
bool is_late(const json& study, const json& claim) {
  const std::string id = text_at(claim, "id");
  for (const json& change : study["claim_changes"]) {
    const std::string what = ", " + text_at(change, "what") + ",";  // "changed a, added b"
    if (what.find(", changed " + id + ",") != std::string::npos) return true;
    if (what.find(", added " + id + ",") != std::string::npos) return true;
  }
  return false;
}

/// `outdated` names the studies whose recipe has changed since they were run.
std::string index_of(const std::filesystem::path& directory, const std::set<std::string>& outdated) {
  std::vector<json> studies;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (!entry.is_directory()) continue;
    json study = stored_study(entry.path());
    if (study.is_null()) continue;
    study["name"] = entry.path().filename().string();
    studies.push_back(std::move(study));
  }
  std::ranges::sort(studies, {}, [](const json& study) { return text_at(study, "name"); });
  std::string text =
      "# Results\n\nThe papers' claims and what came of them at the sizes that a laptop trains. `tamis repro ID` runs "
      "a "
      "study again;\n[studies.md](../studies.md) explains recipes and verdicts. These pages are written by `tamis "
      "repro "
      "--book docs/results`.\n\n" +
      summary_of(of_first_tier(studies)) +
      "†: the claim was added or changed when its study had results; the page says when.\n\n"
      "| study | claim | the paper | measured [95% interval] | verdict | version |\n|---|---|---|---|---|---|\n";
  for (const json& study : studies) {
    const std::string version = version_of(study, outdated.contains(text_at(study, "name")));
    for (const json& claim : study["claims"]) {
      text += fmt::format("| [{0}]({0}.md) | {1} | {2} | {3} | {4}{5} | {6} |\n", text_at(study, "name"),
                          text_at(claim, "text"), text_at(claim, "paper"), measured(claim), text_at(claim, "verdict"),
                          is_late(study, claim) ? " †" : "", version);
    }
    if (study["claims"].empty()) {
      text += fmt::format("| [{0}]({0}.md) | {1} | | | no claim | {2} |\n", text_at(study, "name"),
                          text_at(study, "title"), version);
    }
  }
  return text;
}

}  // namespace

std::filesystem::path studies_directory() {
  if (const char* given = std::getenv("TAMIS_STUDIES"); given != nullptr && *given != '\0') {
    if (!std::filesystem::is_directory(given)) fail(ExitCode::kUsage, "TAMIS_STUDIES: {} is not a directory", given);
    return given;
  }
  const std::filesystem::path here = "recipes/studies",
                              installed = program_directory() / "../share/tamis/recipes/studies";
  for (const auto& directory : {here, installed}) {
    if (std::filesystem::is_directory(directory)) return directory;
  }
  fail(ExitCode::kUsage,
       "no studies found: expected recipes/studies here; run this in a clone of Tamis, or name the "
       "folder of recipes in TAMIS_STUDIES");
}

std::vector<std::filesystem::path> study_recipes() {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(studies_directory())) {
    if (entry.path().extension() == ".toml") files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::filesystem::path find_study(const std::string& id) {
  std::vector<std::string> known;
  for (const std::filesystem::path& file : study_recipes()) {
    known.push_back(file.stem().string());
    if (known.back() == id) return file;
  }
  throw Error(ExitCode::kUsage, unknown_name("study", id, known));
}

json list_studies() {
  json studies = json::array();
  for (const std::filesystem::path& file : study_recipes()) {
    const train::TomlDocument document = train::read_toml(file);
    const json found = document.values.value("study", json());
    const json about = found.is_object() ? found : json::object();
    for (const std::string& tier : tiers()) {
      const bool first = tier == tiers().front();
      if (!first && !document.values.value("tiers", json::object()).contains(tier)) continue;
      const std::string id = file.stem().string();
      const std::filesystem::path directory = newest_result(id, tier);
      const json study = stored_study(directory);
      json seconds = first ? about.value("seconds", json()) : json();
      if (study.is_object()) seconds = first ? json(seconds_on_two_cores(study)) : study["seconds"];
      studies.push_back({{"id", id},
                         {"title", text_at(about, "title")},
                         {"tier", tier},
                         {"seconds", seconds},
                         {"verdict", study.is_object() ? study.value("verdict", json()) : json()},
                         {"recipe_changed", study.is_object() ? json(is_outdated(study, directory, file)) : json()}});
    }
  }
  return {{"studies", std::move(studies)}};
}

std::string to_table(const json& studies) {
  std::string text = fmt::format("{:<28} {:<6} {:>8}  {:<14} {}\n", "id", "tier", "time", "verdict", "title");
  double seconds = 0;
  for (const json& study : studies["studies"]) {
    text += fmt::format("{:<28} {:<6} {:>8}  {:<14} {}{}\n", text_at(study, "id"), text_at(study, "tier"),
                        study["seconds"].is_number() ? format_duration(study["seconds"]) : "-",
                        study["verdict"].is_string() ? text_at(study, "verdict") : "-", text_at(study, "title"),
                        study["recipe_changed"] == true ? " (recipe changed since)" : "");
    if (study["tier"] == tiers().front()) seconds += number_at(study, "seconds");
  }
  return text +
         fmt::format(
             "\nThe tier {} takes {} on two cores, with the commands on the pages; runs that several studies share are "
             "counted in each.\n",
             tiers().front(), format_duration(seconds));
}

int64_t write_book(const std::filesystem::path& directory) {
  make_directories(directory);
  int64_t written = 0;
  std::set<std::string> outdated;
  for (const std::filesystem::path& file : study_recipes()) {
    const json changes = train::read_toml(file).values.value("tiers", json::object());
    for (const std::string& tier : tiers()) {
      const bool first = tier == tiers().front();
      if (!first && !changes.contains(tier)) continue;
      const std::string name = file.stem().string() + (first ? "" : "-" + tier);
      const std::filesystem::path run = std::filesystem::path("runs") / name;
      json study = stored_study(run);
      const bool has_run = study.is_object() && study["done"] == study["jobs"];  // an interrupted study is no result
      if (has_run) {
        write_page(study, run, directory);
      } else {
        study = stored_study(directory / name);
        if (study.is_null()) continue;
      }
      if (is_outdated(study, has_run ? run : directory / name, file)) {
        outdated.insert(name);
      } else if (!has_run) {
        write_again(study, file, directory, name);
      }
      ++written;
    }
  }
  write_file_atomic(directory / "README.md", index_of(directory, outdated));
  return written;
}

}  // namespace tamis::study
