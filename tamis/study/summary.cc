#include "tamis/study/summary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <string>

#include "tamis/base/json.h"

namespace tamis::study {
namespace {

using nlohmann::json;

/// `train.lr 0.01`, with `(edge)` if a better value may lie beyond.
std::string chosen_text(const StudyRecipe& recipe, const Point& point, size_t option) {
  const std::string text = fmt::format("{} {}", recipe.choose->key, plain_text(point.options[option].value));
  return edge_of(point, option).empty() ? text : text + " (edge)";
}

}  // namespace

std::vector<Job> all_jobs(const StudyRecipe& recipe, size_t point, const Results& results) {
  std::vector<Job> jobs = search_jobs(recipe, point);
  const size_t option = chosen_option(recipe, point, results).value_or(0);
  std::ranges::copy(final_jobs(recipe, point, option), std::back_inserter(jobs));
  return jobs;
}

json describe_point(const StudyRecipe& recipe, const Point& point) {
  json entry = {{"name", point.name},
                {"columns", point.columns},
                {"tokens", json()},
                {"matched_by", json()},
                {"start_from", json()}};
  if (!recipe.model) return entry;
  entry["parameters"] = point.parameters.total;
  entry["parameters_without_embedding"] = point.parameters.without_embedding;
  if (recipe.train) entry["tokens"] = tokens_read(recipe, point);
  if (point.start) {
    entry["start_from"] = fmt::format("{}, step {}", recipe.points[point.start->point].name, point.start->step);
  }
  if (point.fit) entry["matched_by"] = fmt::format("{} = {}", point.fit->key, point.fit->value);
  entry["model"] = point.recipe().model;
  return entry;
}

json summarise_point(const StudyRecipe& recipe, size_t p, const Results& results) {
  const Point& point = recipe.points[p];
  json entry = describe_point(recipe, point);
  entry["checksums"] = point.checksums;
  int64_t all = 0;
  std::map<std::string, int64_t> count;  // by status
  double seconds = 0;
  for (const Job& job : all_jobs(recipe, p, results)) {
    ++all;
    const auto found = results.find(job.name);
    if (found == results.end()) continue;
    ++count[text_at(found->second, "status")];
    seconds += found->second.value("job_seconds", 0.0);
  }
  entry["seconds"] = seconds;
  std::string status = fmt::format("{} of {}", count["done"], all);
  for (const char* other : {"diverged", "failed"}) {
    if (count[other] > 0) status += fmt::format(", {} {}", count[other], other);
  }
  entry["status"] = status;
  entry["chosen"] = "";
  entry["search"] = json::array();
  if (!recipe.choose) return entry;
  for (const Job& job : search_jobs(recipe, p)) {
    const auto found = results.find(job.name);
    if (found == results.end()) continue;
    const json rows = found->second["rows"];
    entry["search"].push_back(
        {{"value", point.options[job.option].value}, {"loss", rows.empty() ? json() : rows.front()["value"]}});
  }
  if (const auto option = chosen_option(recipe, p, results)) entry["chosen"] = chosen_text(recipe, point, *option);
  return entry;
}

}  // namespace tamis::study
