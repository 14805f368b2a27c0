#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/study/recipe.h"
#include "tamis/train/toml.h"

namespace tamis::study {

/// What the readers of a study's tables have in common. Every failure throws ExitCode::kUsage with file:line.
class RecipeReader {
 public:
  RecipeReader(const train::TomlDocument& document, train::RecipeUse use, StudyRecipe& recipe)
      : document_(document), use_(use), recipe_(recipe) {}

 protected:
  [[noreturn]] void refuse(const std::string& path, const std::string& text) const {
    throw Error(ExitCode::kUsage, document_.position(path) + ": " + text);
  }

  nlohmann::json list(const std::string& key) const {
    const nlohmann::json found = document_.values.value(key, nlohmann::json::array());
    if (!found.is_array()) refuse(key, fmt::format("expected a list of tables [[{}]]", key));
    return found;
  }

  template <typename Value>
  void refuse_twice(const std::string& path, const std::vector<Value>& values) const {
    for (auto value = values.begin(); value != values.end(); ++value) {
      if (std::find(values.begin(), value, *value) == value) continue;
      refuse(path, fmt::format("{} holds {} twice; give each once", path, nlohmann::json(*value).dump()));
    }
  }

  nlohmann::json table_at(const nlohmann::json& from, const char* key, const std::string& path) const {
    const nlohmann::json found = from.value(key, nlohmann::json::object());
    if (!found.is_object()) refuse(path + "." + key, fmt::format("{}.{} must be a table", path, key));
    return found;
  }

  void check_known(const char* kind, const std::string& name, const std::vector<std::string>& known,
                   const std::string& path) const;

  /// Expects points with `value`, or with each value of a list, in their column.
  void check_values(const std::string& column, const nlohmann::json& value, const std::string& path) const;

  const train::TomlDocument& document_;
  const train::RecipeUse use_;
  StudyRecipe& recipe_;
};

/// Reads [choose], [equal], [[axes]] and [[variants]] into recipe.points, whose sizes and tokens fit the rule of
/// [equal].
void read_points(const train::TomlDocument& document, train::RecipeUse use, StudyRecipe& recipe);

/// Reads [[evaluations]] of a recipe that has its points.
void read_evaluations(const train::TomlDocument& document, train::RecipeUse use, StudyRecipe& recipe);

/// Reads [[claims]], [[figures]] and [[tables]] of a recipe that has its evaluations.
void read_measurements(const train::TomlDocument& document, train::RecipeUse use, StudyRecipe& recipe);

/// Overrides the values of `document` at `path` with those of `over`, which stands at `from` in the document.
void put_over(train::TomlDocument& document, nlohmann::json& values, const std::string& path,
              const nlohmann::json& over, const std::string& from);

}  // namespace tamis::study
