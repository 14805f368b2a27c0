#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace tamis::study {

/// The recipes of the studies that come with Tamis: TAMIS_STUDIES, recipes/studies under the working directory, or
/// share/tamis/recipes/studies next to the program. Throws ExitCode::kUsage when there is none.
std::filesystem::path studies_directory();

/// The recipes in that folder, by name.
std::vector<std::filesystem::path> study_recipes();

/// The recipe of a study. Throws ExitCode::kUsage with the closest known id.
std::filesystem::path find_study(const std::string& id);

/// {"studies": [{"id", "title", "tier", "seconds", "verdict", "recipe_changed"}]}, one entry for each tier of each
/// study. seconds, on two cores: of the newest stored result, else what the recipe expects. verdict: of the newest
/// stored result, in runs/ or docs/results/; null where there is none. recipe_changed: whether the recipe now trains or
/// measures something else than when that result was stored.
nlohmann::json list_studies();

/// The same as a table, and the time of the first tier.
std::string to_table(const nlohmann::json& studies);

/// Writes the page, the figures and the results of every study that has run under runs/ into `directory`, and README.md
/// with a table of all verdicts, which marks results of recipes that have changed since. Pages in the folder without a
/// run are written again from their stored results, unless the recipe now measures something else; then they stay.
/// Returns the number of studies in the table that have a recipe.
int64_t write_book(const std::filesystem::path& directory);

}  // namespace tamis::study
