#include "tamis/study/recipe_reader.h"

#include "tamis/base/json.h"
#include "tamis/base/names.h"

namespace tamis::study {

using nlohmann::json;

void RecipeReader::check_known(const char* kind, const std::string& name, const std::vector<std::string>& known,
                               const std::string& path) const {
  if (std::ranges::find(known, name) == known.end()) refuse(path, unknown_name(kind, name, known));
}

void RecipeReader::check_values(const std::string& column, const json& value, const std::string& path) const {
  std::vector<json> values;
  for (const Point& point : recipe_.points) {
    if (point.columns.contains(column)) values.push_back(point.columns[column]);
  }
  for (const json& each : value.is_array() ? value : json::array({value})) {
    if (std::ranges::find(values, each) != values.end()) continue;
    std::vector<std::string> known;
    for (const json& found : values) {
      if (plain_text(found) == plain_text(each)) {
        refuse(fmt::format("{}.{}", path, column),
               fmt::format("{}.{} is {} in this study, not {}", path, column, found.dump(), each.dump()));
      }
      if (std::ranges::find(known, plain_text(found)) == known.end()) known.push_back(plain_text(found));
    }
    refuse(fmt::format("{}.{}", path, column), unknown_name(column, plain_text(each), known));
  }
}

}  // namespace tamis::study
