#include "tamis/study/check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <set>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/message.h"
#include "tamis/base/process.h"
#include "tamis/base/version.h"
#include "tamis/study/book.h"
#include "tamis/study/job.h"
#include "tamis/study/options.h"
#include "tamis/study/stored.h"
#include "tamis/train/machine.h"
#include "tamis/train/stop_signals.h"

namespace tamis::study {
namespace {

using nlohmann::json;

/// Tolerances: of values with a seed max(kRelative |then|, kAbsolute, difference of the seeds), of others
/// kRounding (|then| + kRounding).
constexpr double kRelative = 0.02, kAbsolute = 0.02, kRounding = 1e-5;

/// Metrics that count, and so are equal or not.
const std::set<std::string> kCounts = {
    "parameters", "parameters_without_embedding", "planned_flops_per_token", "flops_per_token", "state_bytes",
    "diverged"};

/// Metrics that rounding changes too much: of one run among several, or of a rare event.
const std::set<std::string> kLeftOut = {"search_loss", "chosen_step", "loss_spikes"};

/// Columns whose values are averaged over, in rows with a seed.
const std::set<std::string> kAveraged = {"depth", "step", "tokens",   "layer",         "head",   "query",  "key",
                                         "map",   "rank", "position", "last_position", "tensor", "outcome"};

struct Mean {
  double sum = 0;
  int64_t finite = 0, rows = 0;

  double value() const { return sum / static_cast<double>(finite); }
};

/// The key is null for rows without a seed.
using SeedValues = std::map<json, Mean>;

/// By what they measure: {"metric": "score", "task": "copy", "length": 64}.
using CellValues = std::map<json, SeedValues>;

CellValues cells_of(const Rows& rows, const Columns& columns) {
  CellValues cells;
  for (const json& row : rows) {
    const std::string metric = text_at(row, "metric");
    if (!matches(row, columns) || is_time(metric) || kLeftOut.contains(metric)) continue;
    const json seed = row.value("seed", json());
    json key = json::object();
    for (const auto& [column, value] : row.items()) {
      if (column == "value" || column == "seed" || columns.contains(column)) continue;
      if (seed.is_null() || !kAveraged.contains(column)) key[column] = value;
    }
    Mean& mean = cells[key][seed];
    ++mean.rows;
    if (!row["value"].is_number()) continue;
    mean.sum += row["value"].get<double>();
    ++mean.finite;
  }
  return cells;
}

/// The largest difference of the means of two seeds.
double spread(const SeedValues& values) {
  std::vector<double> means;
  for (const auto& [seed, mean] : values) {
    if (mean.finite > 0) means.push_back(mean.value());
  }
  if (means.empty()) return 0;
  const auto [least, most] = std::ranges::minmax(means);
  return most - least;
}

bool is_same(const std::string& metric, const json& seed, const Mean& now, const SeedValues& stored) {
  const Mean& then = stored.at(seed);
  // Every seed has added the rows without one.
  if (!seed.is_null() && (now.finite != then.finite || now.rows != then.rows)) return false;
  if (now.finite == 0 || then.finite == 0) return now.finite == then.finite;
  if (kCounts.contains(metric)) return now.value() == then.value();
  const double size = std::abs(then.value());
  const double tolerance =
      seed.is_null() ? kRounding * (size + kRounding) : std::max({kRelative * size, kAbsolute, spread(stored)});
  return std::abs(now.value() - then.value()) <= tolerance;
}

/// `0.98`, or `0.98 (9 of 10 finite)`
std::string value_text(const SeedValues& values, const json& seed) {
  const auto found = values.find(seed);
  if (found == values.end()) return "none";
  const Mean& mean = found->second;
  if (mean.finite == 0) return "no finite number";
  const bool is_whole = std::abs(mean.value()) < 1e15 && mean.value() == std::trunc(mean.value());
  const std::string value = is_whole ? fmt::format("{:.0f}", mean.value()) : fmt::format("{:.6g}", mean.value());
  return mean.finite == mean.rows ? value : fmt::format("{} ({} of {} finite)", value, mean.finite, mean.rows);
}

/// `score (copy, 64)`
std::string name_of(const json& key) {
  std::vector<std::string> values;
  for (const auto& [column, value] : key.items()) {
    if (column != "metric") values.push_back(plain_text(value));
  }
  const std::string metric = text_at(key, "metric");
  return values.empty() ? metric : fmt::format("{} ({})", metric, fmt::join(values, ", "));
}

/// The option with the stored value: `train.lr 0.01`, maybe with a remark.
size_t stored_option(const StudyRecipe& recipe, const Point& point, const json& stored) {
  if (!recipe.choose || !recipe.train) return 0;
  const std::string chosen = text_at(stored, "chosen") + " ";
  for (size_t option = 0; option < point.options.size(); ++option) {
    const std::string value = plain_text(point.options[option].value);
    if (chosen.starts_with(fmt::format("{} {} ", recipe.choose->key, value))) return option;
  }
  fail(ExitCode::kInput, "study.json does not name the {} that was chosen for {}", recipe.choose->key, point.name);
}

/// A model to repeat.
struct Repetition {
  size_t point, option;
};

/// What is stored of a model.
struct StoredModel {
  size_t point;
  const json* entry;  // of study.json
  bool has_rows = false, has_diverged = false;
  int64_t judged = 0;  // how many metrics that claims judge
  double loss = 0;
};

StoredModel stored_model(const StudyRecipe& recipe, size_t point, const json& entry, const Rows& rows) {
  const int64_t seed = recipe.seeds.front();
  StoredModel model{.point = point, .entry = &entry};
  std::set<std::string> metrics;
  for (const auto& [key, values] : cells_of(rows, recipe.points[point].columns)) {
    const std::string metric = text_at(key, "metric");
    metrics.insert(metric);
    const auto value = values.find(seed);
    model.has_rows |= !recipe.train || value != values.end();
    if (value == values.end()) continue;
    if (metric == "diverged") model.has_diverged = value->second.value() == 1;
    if (metric == "validation_loss") {
      model.loss = value->second.finite > 0 ? value->second.value() : std::numeric_limits<double>::infinity();
    }
  }
  std::set<std::string> judged;
  for (const Claim& claim : recipe.claims) judged.insert(claim.metric);
  model.judged = std::ranges::count_if(judged, [&](const std::string& metric) { return metrics.contains(metric); });
  return model;
}

/// The models to repeat: all when nothing is trained, else of those with results for the most metrics that claims judge
/// the one with the shortest runs. Models with more than the median loss are left out: rounding moves them far.
std::vector<Repetition> repetitions(const StudyRecipe& recipe, const json& study, const Rows& rows) {
  std::vector<StoredModel> models;
  bool diverged = false;
  for (size_t p = 0; p < recipe.points.size(); ++p) {
    const auto is_point = [&](const json& each) { return text_at(each, "name") == recipe.points[p].name; };
    const auto entry = std::ranges::find_if(study["points"], is_point);
    if (recipe.points[p].start || entry == study["points"].end()) continue;
    const StoredModel model = stored_model(recipe, p, *entry, rows);
    diverged |= model.has_diverged;
    if (model.has_rows && !model.has_diverged) models.push_back(model);
  }
  if (models.empty()) {
    fail(ExitCode::kInput, "no model can be repeated: {} with the seed {}",
         diverged ? "all diverged" : "results.csv has no values of one", recipe.seeds.front());
  }
  if (recipe.train) {
    const int64_t most = std::ranges::max(models, {}, &StoredModel::judged).judged;
    std::erase_if(models, [&](const StoredModel& each) { return each.judged < most; });
    std::ranges::sort(models, {}, &StoredModel::loss);
    models.erase(models.begin() + (std::ssize(models) + 1) / 2, models.end());
    models = {std::ranges::min(models, {}, [](const StoredModel& each) { return number_at(*each.entry, "seconds"); })};
  }
  std::vector<Repetition> repetitions;
  for (const StoredModel& model : models) {
    repetitions.push_back({model.point, stored_option(recipe, recipe.points[model.point], *model.entry)});
  }
  return repetitions;
}

/// The columns that all rows of the model have.
Columns columns_of(const StudyRecipe& recipe, const Repetition& model) {
  const Point& point = recipe.points[model.point];
  Columns columns = point.columns;
  if (recipe.choose) columns[recipe.choose->column()] = point.options[model.option].value;
  return columns;
}

/// Throws kInput when the texts have changed since; older results do not say which they read.
void check_texts(const StudyRecipe& recipe, const json& study) {
  const std::string advice = recipe.prepare.empty() ? "" : "; make it with: " + recipe.prepare;
  for (const json& stored : study["points"]) {
    const json then = stored.is_object() ? stored.value("checksums", json()) : json();
    if (!then.is_object()) continue;
    for (const Point& point : recipe.points) {
      if (point.name != text_at(stored, "name")) continue;
      for (const auto& [source, checksum] : point.checksums) {
        if (text_at(then, source.c_str()) == checksum) continue;
        fail(ExitCode::kInput, "the text of data.sources.{} has changed since{}", source, advice);
      }
    }
  }
  json then = study.value("evaluation_texts", json());
  if (!then.is_array()) then = json::array();
  const std::vector<std::string> now = evaluation_texts(recipe);
  for (size_t i = 0; i < std::min(then.size(), now.size()); ++i) {
    if (then[i] == "" || then[i] == now[i]) continue;  // earlier versions have none of a haystack
    fail(ExitCode::kInput, "a text of [[evaluations]] has changed since{}", advice);
  }
}

/// The folder runs/.check, which one process uses at a time and removes at the end.
class Scratch {
 public:
  Scratch() {
    std::error_code ignored;
    had_runs_ = std::filesystem::exists("runs", ignored);
    make_directories(kFolder);
    lock_ = std::make_unique<FileLock>(folder() / "lock");
    for (const auto& entry : std::filesystem::directory_iterator(kFolder, ignored)) {  // of a process that was killed
      if (entry.path().filename() != "lock") std::filesystem::remove_all(entry.path(), ignored);
    }
  }
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(kFolder, ignored);
    if (!had_runs_) std::filesystem::remove("runs", ignored);  // if it is empty
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  static std::filesystem::path folder() { return kFolder; }

 private:
  static constexpr const char* kFolder = "runs/.check";
  bool had_runs_;
  std::unique_ptr<FileLock> lock_;
};

/// Throws kHangup, kInterrupt or kTerminate after a signal. Unlike a study, a check cannot be resumed.
void end_if_stopped(const train::StopSignals& signals) {
  const int signal = signals.received();
  if (signal == 0) return;
  fail(train::exit_code_of(signal), "repro: the check was stopped by {}", train::name_of_signal(signal));
}

/// An entry of check_studies() before anything is known.
json entry_of(const std::filesystem::path& file) {
  return {{"id", file.stem().string()},  {"version", json()}, {"run", json()}, {"same", json()}, {"reason", ""},
          {"differences", json::array()}};
}

/// Throws kInput when there is nothing that a run of this recipe could be compared with.
void check_comparable(const json& study, const std::filesystem::path& directory, const std::filesystem::path& file) {
  if (study.is_null()) fail(ExitCode::kInput, "has no result");
  if (study["done"] != study["jobs"]) fail(ExitCode::kInput, "has not run to its end; run it again to resume");
  if (change_since(study, directory, file) == RecipeChange::kMeasured) {
    fail(ExitCode::kInput, "the recipe has changed since; run the study again");
  }
  for (const std::string& setting : settings_of(study, file)) {
    if (setting.starts_with("train.threads=")) continue;
    fail(ExitCode::kInput, "was run with --set {}; run it without", setting);
  }
}

/// Notes the outcome in study.json, unless the study has been run again meanwhile.
void note(const std::filesystem::path& directory, const json& before, const json& entry) {
  json study = stored_study(directory);
  if (study.is_null() || study["time"] != before["time"]) return;
  study["check"] = to_json({.run = entry["run"],
                            .same = entry["same"],
                            .differences = entry["differences"],
                            .machine = train::describe_machine(),
                            .version = kVersion,
                            .commit = train::build_commit(),
                            .time = train::utc_now()});
  write_file_atomic(directory / "study.json", json_text(study, 1));
}

/// Repeats runs of studies. Studies that share runs share them here, too.
class Checker {
 public:
  Checker(const std::string& tier, const std::vector<std::string>& overrides, at::Device device, std::FILE* messages)
      : tier_(tier), overrides_(overrides), device_(device), messages_(messages) {}

  const train::StopSignals& signals() const { return signals_; }

  /// An entry of check_studies().
  json check(const std::filesystem::path& file) const {
    json entry = entry_of(file);
    const std::filesystem::path directory = newest_result(entry["id"], tier_);
    const json study = stored_study(directory);
    check_comparable(study, directory, file);
    entry["version"] = study["commit"];
    const Rows rows = from_csv(read_file(directory / "results.csv"));
    const StudyRecipe recipe = load_study(file, settings(entry["id"], study), tier_);
    check_texts(recipe, study);
    compare(recipe, repetitions(recipe, study, rows), rows, entry);
    note(directory, study, entry);
    return entry;
  }

 private:
  /// Runs the models; fills in run, same and differences.
  void compare(const StudyRecipe& recipe, const std::vector<Repetition>& models, const Rows& rows, json& entry) const {
    std::vector<std::string> all;
    for (const Repetition& model : models) {
      const Job job = final_jobs(recipe, model.point, model.option).front();
      entry["run"] = models.size() == 1 ? job.name : fmt::format("{} models", models.size());
      print_message(messages_, fmt::format("check: {}: {}\n", recipe.id, job.name));
      const json result = run_job(recipe, job, device_, messages_, signals_);
      end_if_stopped(signals_);
      if (text_at(result, "status") == "failed") fail(ExitCode::kRuntime, "{}", text_at(result, "reason"));
      for (const std::string& each : differences(result["rows"].get<Rows>(), rows, columns_of(recipe, model))) {
        all.push_back(models.size() == 1 ? each : job.name + ": " + each);
      }
    }
    entry["same"] = all.empty();
    entry["differences"] = all;
  }

  std::vector<std::string> settings(const std::string& id, const json& study) const {
    std::vector<std::string> settings = overrides_;
    const std::string runs = std::filesystem::path(folder_of_runs(study)).filename().string();
    for (const auto& [key, folder] : {std::pair{"study.dir", "study-" + id}, {"study.runs", "runs-" + runs}}) {
      settings.push_back(fmt::format("{}={}", key, json((Scratch::folder() / folder).string()).dump()));
    }
    return settings;
  }

  const std::string tier_;
  const std::vector<std::string>& overrides_;
  const at::Device device_;
  std::FILE* messages_;
  const train::StopSignals signals_;  // before the folder, so that a signal cannot leave it behind
  const Scratch scratch_;
};

/// Errors that end the check of all studies.
bool ends_all(ExitCode code) {
  return code == ExitCode::kStorage || code == ExitCode::kHangup || code == ExitCode::kInterrupt ||
         code == ExitCode::kTerminate;
}

}  // namespace

json check_studies(const std::string& id, const std::string& tier, const std::vector<std::string>& overrides,
                   at::Device device, std::FILE* messages, const std::function<void(const json&)>& found) {
  std::vector<std::filesystem::path> files = id.empty() ? study_recipes() : std::vector{find_study(id)};
  if (id.empty() && tier != tiers().front()) {  // which few have run
    std::erase_if(files, [&](const auto& file) { return stored_study(newest_result(file.stem(), tier)).is_null(); });
    if (files.empty()) fail(ExitCode::kInput, "repro: no study of the tier {} has a result", tier);
  }
  const Checker checker(tier, overrides, device, messages);
  json entries = json::array();
  for (const std::filesystem::path& file : files) {
    json entry = entry_of(file);
    try {
      entry = checker.check(file);
    } catch (const Error& error) {
      end_if_stopped(checker.signals());  // in the place of the advice to resume
      if (ends_all(error.code())) throw;
      if (!id.empty()) throw Error(error.code(), id + ": " + error.what());
      entry["reason"] = error.what();
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception& error) {
      if (!id.empty()) throw;
      entry["reason"] = message_of(error);
    }
    end_if_stopped(checker.signals());
    found(entry);
    entries.push_back(std::move(entry));
  }
  return {{"studies", std::move(entries)}};
}

std::string check_header() {
  return fmt::format("{:<28} {:<32} {}\n", "id", "repeated", "result");
}

std::string check_line(const json& entry) {
  std::string result = entry["same"] == true ? "same" : text_at(entry, "reason");
  if (entry["same"] == false) {
    result = "differs: " + first_of(entry["differences"].get<std::vector<std::string>>());
  }
  return fmt::format("{:<28} {:<32} {}\n", text_at(entry, "id"), text_at(entry, "run", "-"), result);
}

std::vector<std::string> differences(const Rows& now, const Rows& stored, const Columns& columns) {
  const CellValues cells = cells_of(now, columns), then = cells_of(stored, columns);
  std::set<std::string> kept;
  for (const auto& [key, values] : then) kept.insert(text_at(key, "metric"));
  std::set<json> keys, seeds;
  for (const auto& [key, values] : cells) {
    keys.insert(key);
    for (const auto& [seed, mean] : values) seeds.insert(seed);
  }
  for (const auto& [key, values] : then) keys.insert(key);
  const SeedValues none;
  std::vector<std::string> found;
  for (const json& key : keys) {
    const std::string metric = text_at(key, "metric");
    if (!kept.contains(metric)) continue;  // the page does not show it
    const SeedValues& values = cells.contains(key) ? cells.at(key) : none;
    const SeedValues& before = then.contains(key) ? then.at(key) : none;
    for (const json& seed : seeds) {
      const auto value = values.find(seed);
      if (value == values.end() && !before.contains(seed)) continue;
      if (value != values.end() && before.contains(seed) && is_same(metric, seed, value->second, before)) continue;
      found.push_back(fmt::format("{} {}, was {}", name_of(key), value_text(values, seed), value_text(before, seed)));
    }
  }
  return found;
}

}  // namespace tamis::study
