#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tamis/study/recipe.h"
#include "tamis/study/table.h"

namespace tamis::study {

/// study.json of a directory, without rows; null when there is none, or when the file is damaged or of another version
/// that wrote other keys.
nlohmann::json stored_study(const std::filesystem::path& directory);

enum class RecipeChange {
  kNone,
  kShown,     // only what is read and judged: claims, figures, tables and texts of the page
  kMeasured,  // what is trained or measured
};

/// How a recipe has changed since the stored study was run. Settings of the command line are not compared.
RecipeChange change_since(const nlohmann::json& study, const std::filesystem::path& recipe);

/// A study in a book with the claims, figures, tables and texts of today's recipe. Claims that have changed are judged
/// by the stored rows, and claim_changes notes that. Changed figures are drawn into `directory`; without matplotlib a
/// message says so and the figures remain as they are.
nlohmann::json shown_by(const StudyRecipe& recipe, nlohmann::json study, const Rows& rows,
                        const std::filesystem::path& directory, std::FILE* messages);

}  // namespace tamis::study
