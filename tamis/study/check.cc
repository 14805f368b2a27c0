#include "tamis/study/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/message.h"
#include "tamis/study/book.h"
#include "tamis/study/job.h"
#include "tamis/study/options.h"
#include "tamis/study/stored.h"
#include "tamis/train/machine.h"
#include "tamis/train/stop_signals.h"

namespace tamis::study {
namespace {

using nlohmann::json;

constexpr double kRelative = 0.02, kAbsolute = 0.02;  // of values of a seed
constexpr double kExact = 0.001;                      // of others, relative

/// Of a metric, the means by seed; the key is null for rows without one. NaN where no value is finite.
using SeedMeans = std::map<json, double>;

bool is_compared(const json& row) {
  static const std::set<std::string> kLeftOut = {"training_seconds", "tokens_per_second", "read_seconds",
                                                 "token_seconds",    "search_loss",       "loss_spikes"};
  return !row.contains("step") && !kLeftOut.contains(text_at(row, "metric"));
}

std::map<std::string, SeedMeans> means_of(const Rows& rows, const Columns& columns) {
  std::map<std::string, RowList> by_metric;
  for (const json& row : rows) {
    if (is_compared(row) && matches(row, columns)) by_metric[text_at(row, "metric")].push_back(&row);
  }
  std::map<std::string, SeedMeans> means;
  for (const auto& [metric, list] : by_metric) {
    for (const json* row : list) means[metric][row->value("seed", json())] = std::nan("");
    for (const auto& [seed, mean] : seed_means(list)) means[metric][seed] = mean;
  }
  return means;
}

/// The largest difference of the finite values of two seeds.
double spread(const SeedMeans& means) {
  std::vector<double> finite;
  for (const auto& [seed, mean] : means) {
    if (std::isfinite(mean)) finite.push_back(mean);
  }
  if (finite.empty()) return 0;
  const auto [least, most] = std::ranges::minmax(finite);
  return most - least;
}

bool is_same(const json& seed, double now, const SeedMeans& stored) {
  const double then = stored.at(seed);
  if (std::isnan(now) && std::isnan(then)) return true;
  const double tolerance =
      seed.is_null() ? kExact * std::abs(then) : std::max({kRelative * std::abs(then), kAbsolute, spread(stored)});
  return std::abs(now - then) <= tolerance;  // false when one is NaN
}

std::string number_or_none(double value) {
  return std::isnan(value) ? "no finite number" : fmt::format("{:.4g}", value);
}

/// The option that was chosen then: `train.lr 0.01`, maybe with a remark.
size_t option_then(const StudyRecipe& recipe, const Point& point, const json& stored) {
  if (!recipe.choose) return 0;
  const std::string chosen = text_at(stored, "chosen") + " ";
  for (size_t option = 0; option < point.options.size(); ++option) {
    const std::string value = plain_text(point.options[option].value);
    if (chosen.starts_with(fmt::format("{} {} ", recipe.choose->key, value))) return option;
  }
  fail(ExitCode::kInput, "{}: study.json does not name the {} that was chosen for {}", recipe.id, recipe.choose->key,
       point.name);
}

struct Choice {
  size_t point, option;
  json stored;  // the point in study.json
};

/// The model whose runs took least time; those that start from other runs are left out.
Choice quickest(const StudyRecipe& recipe, const json& study) {
  std::optional<Choice> choice;
  double least = 0;
  for (size_t p = 0; p < recipe.points.size(); ++p) {
    const Point& point = recipe.points[p];
    if (point.start) continue;
    for (const json& stored : study["points"]) {
      if (text_at(stored, "name") != point.name || !stored["seconds"].is_number()) continue;
      const double seconds = stored["seconds"];
      if (choice && seconds >= least) continue;
      choice = {p, option_then(recipe, point, stored), stored};
      least = seconds;
    }
  }
  if (!choice) fail(ExitCode::kInput, "{}: study.json has no model of the recipe", recipe.id);
  return *choice;
}

/// Throws kInput when the texts are others than then. Older results do not name them.
void check_texts(const StudyRecipe& recipe, const Choice& choice) {
  const json then = choice.stored.value("checksums", json());
  if (!then.is_object()) return;
  for (const auto& [source, checksum] : recipe.points[choice.point].checksums) {
    if (text_at(then, source.c_str()) == checksum) continue;
    const std::string make = recipe.prepare.empty() ? "" : "; make it with: " + recipe.prepare;
    fail(ExitCode::kInput, "{}: the text of data.sources.{} is another one than then{}", recipe.id, source, make);
  }
}

/// runs/.check, which one process uses at a time and removes at the end.
class Scratch {
 public:
  Scratch() {
    make_directories(kDirectory);
    lock_ = std::make_unique<FileLock>(std::filesystem::path(kDirectory) / "lock");
  }
  ~Scratch() { remove(kDirectory); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  /// An empty one for a study.
  std::filesystem::path directory(const std::string& id) const {
    const std::filesystem::path directory = std::filesystem::path(kDirectory) / id;
    remove(directory);
    return directory;
  }

 private:
  static constexpr const char* kDirectory = "runs/.check";
  static void remove(const std::filesystem::path& directory) {
    std::error_code ignored;
    std::filesystem::remove_all(directory, ignored);
  }
  std::unique_ptr<FileLock> lock_;
};

/// Of training and measuring; a stop is not to be resumed, because the check begins again.
json result_of(const StudyRecipe& recipe, const Job& job, at::Device device, std::FILE* messages,
               const train::StopSignals& signals) {
  try {
    return run_job(recipe, job, device, messages, signals);
  } catch (const Error&) {
    const int signal = signals.received();
    if (signal == 0) throw;
    fail(train::exit_code_of(signal), "{}: the check was stopped by {}", recipe.id, train::name_of_signal(signal));
  }
}

json check(const std::filesystem::path& file, const std::vector<std::string>& overrides, const Scratch& scratch,
           at::Device device, std::FILE* messages, const train::StopSignals& signals) {
  const std::string id = file.stem().string(), tier = tiers().front();
  const std::filesystem::path directory = newest_result(id, tier);
  json study = stored_study(directory);
  if (study.is_null()) fail(ExitCode::kInput, "{}: has no result", id);
  json outcome = {{"id", id}, {"version", study["commit"]}, {"reason", ""}};
  if (change_since(study, directory, file) == RecipeChange::kMeasured) {
    fail(ExitCode::kInput, "{}: the recipe has changed since; run the study again", id);
  }
  const std::string work = json(scratch.directory(id).string()).dump();
  std::vector<std::string> settings = overrides;
  for (const char* key : {"study.dir", "study.runs"}) {
    settings.push_back(fmt::format("{}={}", key, work));
  }
  const StudyRecipe recipe = load_study(file, settings, tier);
  const Choice choice = quickest(recipe, study);
  check_texts(recipe, choice);
  const Job job = final_jobs(recipe, choice.point, choice.option).front();
  print_message(messages, fmt::format("check: {}: {}\n", id, job.name));
  const json result = result_of(recipe, job, device, messages, signals);
  const std::vector<std::string> differ = differences(
      result["rows"].get<Rows>(), from_csv(read_file(directory / "results.csv")), recipe.points[choice.point].columns);
  outcome.update({{"run", job.name}, {"same", differ.empty()}, {"differences", differ}});
  study["check"] = {{"run", job.name},
                    {"same", differ.empty()},
                    {"differences", differ},
                    {"commit", train::build_commit()},
                    {"machine", train::describe_machine()},
                    {"time", train::utc_now()}};
  write_file_atomic(directory / "study.json", json_text(study, 1));
  return outcome;
}

/// Errors that one study has and others need not have.
bool is_of_one_study(ExitCode code) {
  return code == ExitCode::kUsage || code == ExitCode::kInput;
}

}  // namespace

json check_studies(const std::string& id, const std::vector<std::string>& overrides, at::Device device,
                   std::FILE* messages) {
  const train::StopSignals signals;
  const Scratch scratch;
  if (!id.empty()) return {{"studies", {check(find_study(id), overrides, scratch, device, messages, signals)}}};
  json checks = json::array();
  for (const std::filesystem::path& file : study_recipes()) {
    try {
      checks.push_back(check(file, overrides, scratch, device, messages, signals));
    } catch (const Error& error) {
      if (!is_of_one_study(error.code())) throw;
      checks.push_back({{"id", file.stem().string()}, {"same", json()}, {"reason", error.what()}});
    }
  }
  return {{"studies", std::move(checks)}};
}

std::string checks_to_table(const json& checks) {
  std::string text = fmt::format("{:<28} {:<32} {}\n", "id", "run", "result");
  for (const json& each : checks["studies"]) {
    std::string result = each["same"] == true ? "same" : text_at(each, "reason");
    if (each["same"] == false) {
      result = fmt::format("differs: {}", fmt::join(each["differences"].get<std::vector<std::string>>(), "; "));
    }
    text += fmt::format("{:<28} {:<32} {}\n", text_at(each, "id"), text_at(each, "run", "-"), result);
  }
  return text;
}

std::vector<std::string> differing(const json& checks) {
  std::vector<std::string> ids;
  for (const json& each : checks["studies"]) {
    if (each["same"] == false) ids.push_back(text_at(each, "id"));
  }
  return ids;
}

std::vector<std::string> differences(const Rows& now, const Rows& stored, const Columns& columns) {
  const auto then = means_of(stored, columns);
  std::vector<std::string> differ;
  for (const auto& [metric, means] : means_of(now, columns)) {
    const auto found = then.find(metric);
    if (found == then.end()) continue;  // not kept, because the page does not show it
    for (const auto& [seed, mean] : means) {
      if (found->second.contains(seed) && is_same(seed, mean, found->second)) continue;
      const double before = found->second.contains(seed) ? found->second.at(seed) : std::nan("");
      differ.push_back(fmt::format("{} {}, was {}", metric, number_or_none(mean), number_or_none(before)));
    }
  }
  return differ;
}

}  // namespace tamis::study
