#include "tamis/study/stored.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tamis/base/json.h"
#include "tamis/study/claims.h"
#include "tamis/study/figures.h"
#include "tamis/study/page.h"
#include "tamis/train/machine.h"
#include "tamis/train/toml.h"

namespace tamis::study {
namespace {

using nlohmann::json;

/// What lists and pages read of study.json.
const std::vector<std::string> kKeys = {"title",   "paper",  "question", "command", "tier",        "claims",
                                        "figures", "tables", "drawn",    "points",  "has_model",   "claim_changes",
                                        "machine", "done",   "jobs",     "seconds", "assumptions", "failed",
                                        "version", "commit", "time",     "verdict", "recipe"};

/// Tables of a recipe, and keys of [study], that have no influence on what is measured.
const std::vector<std::string> kShownTables = {"claims", "figures", "tables"};
const std::vector<std::string> kShownKeys = {"title", "question", "paper", "assumptions"};
const std::vector<std::string> kOtherKeys = {"seconds", "prepare", "dir", "runs"};

json values_then(const json& study) {
  return values_of_tier(train::parse_toml(study["recipe"], "study.json"), study["tier"]);
}

/// Claims by id, as the recipe states them.
json stated_claims(const json& values) {
  json stated = json::object();
  const json list = values.value("claims", json::array());
  for (size_t i = 0; i < list.size(); ++i) {
    stated[list[i].value("id", fmt::format("claim-{}", i + 1))] = list[i];
  }
  return stated;
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

/// The recipe, with the settings of the command line with which the study ran.
std::string with_settings(const std::string& recipe, const std::string& before) {
  std::string text = recipe;
  for (size_t at = before.find("# --set "); at != std::string::npos; at = before.find("# --set ", at + 1)) {
    if (at == 0 || before[at - 1] == '\n') text += before.substr(at, before.find('\n', at) - at) + "\n";
  }
  return text;
}

void judge_again(const StudyRecipe& recipe, json& study, const Rows& rows) {
  const json before = stated_claims(values_then(study));
  json now = json::object();
  for (const Claim& claim : recipe.claims) now[claim.id] = claim.stated;
  const std::vector<std::string> changes = claim_changes(before, now);
  if (changes.empty()) return;
  study["claims"] = json::array();
  for (const Claim& claim : recipe.claims) study["claims"].push_back(judge(claim, rows));
  study["verdict"] = overall_verdict(study["claims"]);
  study["claim_changes"].push_back({{"time", train::utc_now()},
                                    {"results", study["done"]},
                                    {"what", fmt::format("{}", fmt::join(changes, ", "))},
                                    {"before", before}});
}

/// Draws the figures that have changed.
void draw_again(const StudyRecipe& recipe, json& study, const Rows& rows, const std::filesystem::path& directory,
                std::FILE* messages) {
  const json before = study["figures"];
  json changed = json::array();
  for (const json& figure : recipe.figures) {
    if (std::ranges::find(before, figure) == before.end()) changed.push_back(figure);
  }
  draw(changed, rows, directory, messages);
  json drawn = json::array();
  for (const json& figure : recipe.figures) {
    const std::string id = figure["id"];
    if (std::filesystem::exists(directory / (id + ".svg"))) drawn.push_back(id);
    std::filesystem::remove(directory / (id + ".pdf"));  // a book has SVG only
  }
  for (const std::string id : study["drawn"]) {
    if (std::ranges::find(drawn, json(id)) == drawn.end()) std::filesystem::remove(directory / (id + ".svg"));
  }
  study["figures"] = recipe.figures;
  study["drawn"] = std::move(drawn);
}

}  // namespace

json stored_study(const std::filesystem::path& directory) {
  const json study = try_read_object(directory / "study.json").value_or(json::object());
  return std::ranges::all_of(kKeys, [&](const std::string& key) { return study.contains(key); }) ? study : json();
}

RecipeChange change_since(const json& study, const std::filesystem::path& recipe) {
  json then = values_then(study), now = values_of_tier(train::read_toml(recipe), study["tier"]);
  const json shown_then = take_shown(then), shown_now = take_shown(now);
  if (then != now) return RecipeChange::kMeasured;
  return shown_then == shown_now ? RecipeChange::kNone : RecipeChange::kShown;
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
  study["recipe"] = with_settings(recipe.toml, study["recipe"]);
  return study;
}

}  // namespace tamis::study
