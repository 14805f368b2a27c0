#include "tamis/report/recipe_inspection.h"

#include "tamis/report/inspect.h"
#include "tamis/train/memory_estimate.h"

namespace tamis::report {

nlohmann::json inspect_recipe(const train::Recipe& recipe, at::Device device) {
  nlohmann::json result = inspect_config(recipe.model);
  result["memory"] = train::estimate_memory(recipe, device);
  return result;
}

}  // namespace tamis::report
