#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tamis/study/recipe.h"
#include "tamis/study/table.h"

namespace tamis::study {

/// study.json of a directory, without rows; null when there is none, or when the file is damaged or of another version
/// that wrote other keys or types. The recipe in it may be damaged nevertheless.
nlohmann::json stored_study(const std::filesystem::path& directory);

/// Where the newest result of a study is, under runs/ or in the book; without one a directory that has none.
std::filesystem::path newest_result(const std::string& id, const std::string& tier);

enum class RecipeChange {
  kNone,
  kShown,     // only what is read and judged: claims, figures, tables and texts of the page
  kMeasured,  // what is trained or measured, or what is read has no stored results: the study has to run again
};

/// How a recipe has changed since the study that is stored in `directory` was run; kMeasured when the stored recipe
/// cannot be read. Settings of the command line are not compared. Reads results.csv when figures, tables or claims read
/// metrics that they did not read before.
RecipeChange change_since(const nlohmann::json& study, const std::filesystem::path& directory,
                          const std::filesystem::path& recipe);

/// Where the training runs of a study of the first tier are, or were.
std::string folder_of_runs(const nlohmann::json& study);

/// The settings of the command line, `train.steps=50`, with which the study ran. The recipe itself may end with such
/// lines.
std::vector<std::string> settings_of(const nlohmann::json& study, const std::filesystem::path& recipe);

/// What `tamis repro --check` has noted of a result.
struct NotedCheck {
  std::string run;
  bool same = false;
  std::vector<std::string> differences;
  nlohmann::json machine;
  std::string version, commit, time;
};
std::optional<NotedCheck> noted_check(const nlohmann::json& study);
nlohmann::json to_json(const NotedCheck& check);

/// The first five of several texts: `a; b; c; d; e; and 3 more`.
std::string first_of(const std::vector<std::string>& texts);

/// `object[key]`; the fallback when that is no number.
double number_at(const nlohmann::json& object, const char* key, double fallback = 0);

/// For a study to which no run was added: takes over from study.json in `directory` the version, the machine and the
/// time that made its results, and what a check has noted.
void keep_origin(nlohmann::json& study, const std::filesystem::path& directory);

/// For a study that replaces the page in `directory`: adds what that page says of changes of its claims, and how its
/// claims differ from today's, so that running a study again does not hide them.
void keep_claim_changes(nlohmann::json& study, const std::filesystem::path& directory);

/// Whether two of its jobs run at a time on two cores: there are several, and each had one thread.
bool runs_two_at_a_time(const nlohmann::json& study);

/// The command that repeats a study in the time of seconds_on_two_cores(): the stored one, with `--jobs 2` where two
/// jobs of the first tier run at a time.
std::string command_of(const nlohmann::json& study);

/// What the runs of a study take on two cores, in seconds: where two run at a time, half of their processor time (of
/// their wall-clock time in results that lack it); else their wall-clock time.
double seconds_on_two_cores(const nlohmann::json& study);

/// The same of all runs of several studies of the first tier. A run that some of them share, because they keep runs of
/// the same name in the same folder, counts once, with the study that spent most time on it.
double seconds_of_all_runs(const std::vector<nlohmann::json>& studies);

/// The metrics that figures, tables and claims of the study read, among names of columns.
std::set<std::string> shown_metrics(const nlohmann::json& study);

/// Removes every .svg in the folder of a page that the page does not show, such as those of earlier figures.
void remove_undrawn(const nlohmann::json& study, const std::filesystem::path& folder);

/// A study in a book with the claims, figures, tables and texts of today's recipe, for changes of the kind kShown.
/// Claims are judged by the stored rows; claim_changes notes which have changed. Figures that have changed or
/// were not drawn are drawn into `directory`; without matplotlib a message says so, and the figures and their
/// definitions remain as they are.
nlohmann::json shown_by(const StudyRecipe& recipe, nlohmann::json study, const Rows& rows,
                        const std::filesystem::path& directory, std::FILE* messages);

}  // namespace tamis::study
