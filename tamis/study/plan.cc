#include "tamis/study/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "tamis/base/terminal.h"
#include "tamis/study/summary.h"
#include "tamis/train/plan.h"

namespace tamis::study {
namespace {

using nlohmann::json;

std::string operations_text(double flops) {
  return (flops < 1e15 ? format_count(flops) : fmt::format("{:.3g}", flops)) + " floating-point operations";
}

/// As format_duration; long ones in days.
std::string long_duration(double seconds) {
  constexpr double kHour = 3600;
  return seconds < 1000 * kHour ? format_duration(seconds) : format_count(seconds / (24 * kHour)) + " days";
}

}  // namespace

json plan_study(const StudyRecipe& recipe, const std::string& tier, const Results& results) {
  json points = json::array();
  size_t count = 0;
  double all_tokens = 0, all_flops = 0;
  for (size_t p = 0; p < recipe.points.size(); ++p) {
    const Point& point = recipe.points[p];
    json jobs = json::array();
    double tokens = 0;
    for (const Job& job : all_jobs(recipe, p, results)) {
      jobs.push_back(job.name);
      if (!recipe.train) continue;
      const int64_t steps = job.recipe.train.steps - steps_taken_over(point);
      tokens += static_cast<double>(steps * job.recipe.train.batch_tokens);
    }
    count += jobs.size();
    json entry = describe_point(recipe, point);
    const double flops =
        recipe.train ? tokens * train::planned_flops_per_token(point.recipe().model, point.recipe().train.length) : 0.0;
    entry["jobs"] = std::move(jobs);
    entry["flops"] = flops;
    all_tokens += tokens;
    all_flops += flops;
    points.push_back(std::move(entry));
  }
  return {{"id", recipe.id},    {"dir", recipe.dir.string()}, {"tier", tier}, {"jobs", count}, {"tokens", all_tokens},
          {"flops", all_flops}, {"points", std::move(points)}};
}

std::string plan_text(const json& plan) {
  std::string text = fmt::format("{}: {}", plan["dir"].get<std::string>(), counted(plan["jobs"], "job"));
  if (plan["flops"] > 0.0) text += ", " + operations_text(plan["flops"]);
  text += "\n\n";
  for (const json& point : plan["points"]) {
    text += point["name"].get<std::string>();
    if (point.contains("parameters")) {
      text += fmt::format("  {} parameters, {} without the embedding{}", point["parameters"].get<int64_t>(),
                          point["parameters_without_embedding"].get<int64_t>(),
                          point["matched_by"].is_null() ? "" : ", by " + point["matched_by"].get<std::string>());
    }
    text += "\n";
    for (const json& job : point["jobs"]) text += fmt::format("  {}\n", job.get<std::string>());
  }
  return text;
}

std::string planned_work(const json& plan, double peak_flops) {
  std::string text = counted(plan["jobs"], "job");
  std::vector<double> parameters;
  for (const json& point : plan["points"]) {
    if (point.contains("parameters")) parameters.push_back(point["parameters"]);
  }
  if (!parameters.empty()) {
    const auto [smallest, largest] = std::ranges::minmax(parameters);
    const std::string least = format_count(smallest), most = format_count(largest);
    text += fmt::format(", models of {}{} parameters", least == most ? "" : least + " to ", most);
  }
  const double tokens = plan["tokens"], flops = plan["flops"];
  if (tokens > 0) text += fmt::format(", {} tokens", format_count(tokens));
  if (flops > 0) {
    text += fmt::format(", {}, {} at the machine's peak", operations_text(flops), long_duration(flops / peak_flops));
  }
  return text;
}

}  // namespace tamis::study
