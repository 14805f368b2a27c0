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

constexpr double kRelative = 0.02, kAbsolute = 0.02;  // of values with a seed
constexpr double kExact = 1e-5;                       // of others, relative; the absolute part is a hundredth

/// Columns whose values are averaged over, in rows with a seed.
const std::set<std::string> kAveraged = {"depth", "step", "tokens",   "layer",         "head",  "query",
                                         "key",   "map",  "position", "last_position", "tensor"};

/// The mean of each seed; the key is null for rows without one. NaN where no value is finite.
using SeedMeans = std::map<json, double>;

/// By what they measure: {"metric": "score", "task": "copy", "length": 64}.
using CellMeans = std::map<json, SeedMeans>;

CellMeans cells_of(const Rows& rows, const Columns& columns) {
  std::map<json, RowList> by_key;
  for (const json& row : rows) {
    const std::string metric = text_at(row, "metric");
    if (!matches(row, columns) || is_time(metric) || metric == "loss_spikes" || metric == "search_loss") continue;
    const bool has_seed = row.contains("seed") && !row["seed"].is_null();
    json key = json::object();
    for (const auto& [column, value] : row.items()) {
      if (column == "value" || column == "seed" || columns.contains(column)) continue;
      if (!has_seed || !kAveraged.contains(column)) key[column] = value;
    }
    by_key[key].push_back(&row);
  }
  CellMeans cells;
  for (const auto& [key, list] : by_key) {
    for (const json* row : list) cells[key][row->value("seed", json())] = std::nan("");
    for (const auto& [seed, mean] : seed_means(list)) cells[key][seed] = mean;
  }
  return cells;
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
  const double tolerance = seed.is_null() ? kExact * (std::abs(then) + 0.01)
                                          : std::max({kRelative * std::abs(then), kAbsolute, spread(stored)});
  return std::abs(now - then) <= tolerance;  // false when one is NaN
}

std::string number_or_none(const SeedMeans& means, const json& seed) {
  const auto found = means.find(seed);
  if (found == means.end()) return "none";
  return std::isnan(found->second) ? "no finite number" : fmt::format("{:.6g}", found->second);
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

bool diverged(const Rows& rows, const Columns& columns, int64_t seed) {
  return std::ranges::any_of(rows, [&](const json& row) {
    return text_at(row, "metric") == "diverged" && row.value("seed", json()) == seed && row["value"] == 1 &&
           matches(row, columns);
  });
}

/// The option with the stored value: `train.lr 0.01`, maybe with a remark.
size_t stored_option(const StudyRecipe& recipe, const Point& point, const json& stored) {
  if (!recipe.choose) return 0;
  const std::string chosen = text_at(stored, "chosen") + " ";
  for (size_t option = 0; option < point.options.size(); ++option) {
    const std::string value = plain_text(point.options[option].value);
    if (chosen.starts_with(fmt::format("{} {} ", recipe.choose->key, value))) return option;
  }
  fail(ExitCode::kInput, "study.json does not name the {} that was chosen for {}", recipe.choose->key, point.name);
}

/// A model that can be repeated.
struct Candidate {
  size_t point, option;
  int64_t judged;  // the number of metrics with stored rows that claims judge
  double seconds;  // of all its runs
};

std::vector<Candidate> candidates(const StudyRecipe& recipe, const json& study, const Rows& rows) {
  std::set<std::string> judged;
  for (const Claim& claim : recipe.claims) judged.insert(claim.metric);
  std::vector<Candidate> found;
  for (size_t p = 0; p < recipe.points.size(); ++p) {
    const Point& point = recipe.points[p];
    const auto is_point = [&](const json& each) { return text_at(each, "name") == point.name; };
    const auto stored = std::ranges::find_if(study["points"], is_point);
    if (point.start || stored == study["points"].end()) continue;
    if (diverged(rows, point.columns, recipe.seeds.front())) continue;
    std::set<std::string> metrics;
    bool has_seed = !recipe.train;
    for (const auto& [key, means] : cells_of(rows, point.columns)) {
      if (judged.contains(text_at(key, "metric"))) metrics.insert(text_at(key, "metric"));
      has_seed |= means.contains(recipe.seeds.front());
    }
    if (!has_seed) continue;
    found.push_back({p, stored_option(recipe, point, *stored), std::ssize(metrics), number_at(*stored, "seconds")});
  }
  if (found.empty())
    fail(ExitCode::kInput, "results.csv has no model of the recipe with the seed {}", recipe.seeds.front());
  if (recipe.train) {
    const auto order = [](const Candidate& each) { return std::pair(-each.judged, each.seconds); };
    found = {*std::ranges::min_element(found, {}, order)};
  }
  return found;
}

/// The columns that all rows of the model have.
Columns columns_of(const StudyRecipe& recipe, const Candidate& model) {
  const Point& point = recipe.points[model.point];
  Columns columns = point.columns;
  if (recipe.choose) columns[recipe.choose->column()] = point.options[model.option].value;
  return columns;
}

/// Throws kInput when the texts have changed since; older results do not say which they read.
void check_texts(const StudyRecipe& recipe, const json& study) {
  const std::string make = recipe.prepare.empty() ? "" : "; make it with: " + recipe.prepare;
  for (const json& stored : study["points"]) {
    const json then = stored.is_object() ? stored.value("checksums", json()) : json();
    if (!then.is_object()) continue;
    for (const Point& point : recipe.points) {
      if (point.name != text_at(stored, "name")) continue;
      for (const auto& [source, checksum] : point.checksums) {
        if (text_at(then, source.c_str()) == checksum) continue;
        fail(ExitCode::kInput, "the text of data.sources.{} has changed since{}", source, make);
      }
    }
  }
  const json then = study.value("evaluation_texts", json());
  if (then.is_array() && then != evaluation_texts(recipe)) {
    fail(ExitCode::kInput, "a text of [[evaluations]] has changed since{}", make);
  }
}

/// The folder runs/.check, which one process uses at a time and removes at the end.
class Scratch {
 public:
  Scratch() : had_runs_(std::filesystem::exists("runs")) {
    make_directories(kFolder);
    lock_ = std::make_unique<FileLock>(folder() / "lock");
    for (const auto& entry : std::filesystem::directory_iterator(kFolder)) {  // left by a process that was killed
      if (entry.path().filename() != "lock") std::filesystem::remove_all(entry.path());
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
  const bool had_runs_;
  std::unique_ptr<FileLock> lock_;
};

/// A stop cannot be resumed: the next check begins again.
void end_if_stopped(const train::StopSignals& signals) {
  const int signal = signals.received();
  if (signal == 0) return;
  fail(train::exit_code_of(signal), "repro: the check was stopped by {}", train::name_of_signal(signal));
}

/// Repeats runs of studies. Studies that share runs share them here, too.
class Checker {
 public:
  Checker(const std::vector<std::string>& overrides, at::Device device, std::FILE* messages)
      : overrides_(overrides), device_(device), messages_(messages) {}

  /// An entry of check_studies().
  json check(const std::filesystem::path& file) {
    json entry = {{"id", file.stem().string()},  {"version", json()}, {"run", json()}, {"same", json()}, {"reason", ""},
                  {"differences", json::array()}};
    const std::filesystem::path directory = newest_result(entry["id"], tiers().front());
    const json study = stored_study(directory);
    check_comparable(study, directory, file);
    entry["version"] = study["commit"];
    const Rows rows = from_csv(read_file(directory / "results.csv"));
    const StudyRecipe recipe = load_study(file, settings(entry["id"], study), tiers().front());
    check_texts(recipe, study);
    const std::vector<Candidate> chosen = candidates(recipe, study, rows);
    std::vector<std::string> differ;
    for (const Candidate& each : chosen) {
      const Job job = final_jobs(recipe, each.point, each.option).front();
      entry["run"] = chosen.size() == 1 ? job.name : fmt::format("{} models", chosen.size());
      print_message(messages_, fmt::format("check: {}: {}\n", recipe.id, job.name));
      const Rows now = repeat(recipe, job);
      for (const std::string& difference : differences(now, rows, columns_of(recipe, each))) {
        differ.push_back(chosen.size() == 1 ? difference : job.name + ": " + difference);
      }
    }
    entry["same"] = differ.empty();
    entry["differences"] = differ;
    note(directory, study, entry);
    return entry;
  }

  json failed(const std::filesystem::path& file, const std::string& reason) const {
    return {{"id", file.stem().string()}, {"version", json()},           {"run", json()}, {"same", json()},
            {"reason", reason},           {"differences", json::array()}};
  }

  void end_if_stopped() const { study::end_if_stopped(signals_); }

 private:
  /// Throws kInput when there is nothing that a run of this recipe could be compared with.
  static void check_comparable(const json& study, const std::filesystem::path& directory,
                               const std::filesystem::path& file) {
    if (study.is_null()) fail(ExitCode::kInput, "has no result");
    if (study["done"] != study["jobs"]) fail(ExitCode::kInput, "has not run to its end; run it again to resume");
    if (change_since(study, directory, file) == RecipeChange::kMeasured) {
      fail(ExitCode::kInput, "the recipe has changed since; run the study again");
    }
    for (const std::string& setting : settings_since(study, file)) {
      if (setting.starts_with("train.threads=")) continue;
      fail(ExitCode::kInput, "was run with --set {}; run it without", setting);
    }
  }

  std::vector<std::string> settings(const std::string& id, const json& study) const {
    std::vector<std::string> settings = overrides_;
    const std::filesystem::path runs = std::filesystem::path(folder_of_runs(study)).filename();
    const auto set = [&](const char* key, const std::filesystem::path& value) {
      settings.push_back(fmt::format("{}={}", key, json(value.string()).dump()));
    };
    set("study.dir", Scratch::folder() / ("study-" + id));
    set("study.runs", Scratch::folder() / ("runs-" + runs.string()));
    return settings;
  }

  Rows repeat(const StudyRecipe& recipe, const Job& job) const {
    try {
      const Rows rows = run_job(recipe, job, device_, messages_, signals_)["rows"].get<Rows>();
      end_if_stopped();
      return rows;
    } catch (const Error&) {
      end_if_stopped();  // in the place of the advice to resume
      throw;
    }
  }

  /// Unless the study was run again meanwhile.
  static void note(const std::filesystem::path& directory, const json& before, const json& entry) {
    json study = stored_study(directory);
    if (study.is_null() || study["time"] != before["time"]) return;
    study["check"] = {
        {"run", entry["run"]},     {"same", entry["same"]},           {"differences", entry["differences"]},
        {"version", kVersion},     {"commit", train::build_commit()}, {"machine", train::describe_machine()},
        {"time", train::utc_now()}};
    write_file_atomic(directory / "study.json", json_text(study, 1));
  }

  const std::vector<std::string>& overrides_;
  const at::Device device_;
  std::FILE* messages_;
  const Scratch scratch_;
  const train::StopSignals signals_;
};

/// Errors that end the check of all studies.
bool ends_all(ExitCode code) {
  return code == ExitCode::kStorage || code == ExitCode::kHangup || code == ExitCode::kInterrupt ||
         code == ExitCode::kTerminate;
}

}  // namespace

json check_studies(const std::string& id, const std::vector<std::string>& overrides, at::Device device,
                   std::FILE* messages, const std::function<void(const json&)>& found) {
  const std::vector<std::filesystem::path> files = id.empty() ? study_recipes() : std::vector{find_study(id)};
  Checker checker(overrides, device, messages);
  json entries = json::array();
  for (const std::filesystem::path& file : files) {
    checker.end_if_stopped();
    try {
      entries.push_back(checker.check(file));
    } catch (const Error& error) {
      if (ends_all(error.code())) throw;
      if (!id.empty()) throw Error(error.code(), id + ": " + error.what());
      entries.push_back(checker.failed(file, error.what()));
    }
    found(entries.back());
  }
  return {{"studies", std::move(entries)}};
}

std::string check_header() {
  return fmt::format("{:<28} {:<32} {}\n", "id", "repeated", "result");
}

std::string check_line(const json& entry) {
  std::string result = entry["same"] == true ? "same" : text_at(entry, "reason");
  if (entry["same"] == false) {
    result = fmt::format("differs: {}", fmt::join(entry["differences"].get<std::vector<std::string>>(), "; "));
  }
  return fmt::format("{:<28} {:<32} {}\n", text_at(entry, "id"), text_at(entry, "run", "-"), result);
}

std::vector<std::string> differences(const Rows& now, const Rows& stored, const Columns& columns) {
  const CellMeans cells = cells_of(now, columns), then = cells_of(stored, columns);
  std::set<std::string> kept;
  for (const auto& [key, means] : then) kept.insert(text_at(key, "metric"));
  std::set<json> seeds;
  for (const auto& [key, means] : cells) {
    for (const auto& [seed, mean] : means) seeds.insert(seed);
  }
  std::set<json> keys;
  for (const CellMeans& each : {cells, then}) {
    for (const auto& [key, means] : each) keys.insert(key);
  }
  const SeedMeans none;
  std::vector<std::string> differ;
  for (const json& key : keys) {
    if (!kept.contains(text_at(key, "metric"))) continue;  // the page does not show it
    const SeedMeans& mean = cells.contains(key) ? cells.at(key) : none;
    const SeedMeans& before = then.contains(key) ? then.at(key) : none;
    for (const json& seed : seeds) {
      const bool is_number = mean.contains(seed), was_number = before.contains(seed);
      if (!is_number && !was_number) continue;
      const bool is_exact = text_at(key, "metric") == "diverged";
      if (is_number && was_number &&
          (is_exact ? mean.at(seed) == before.at(seed) : is_same(seed, mean.at(seed), before))) {
        continue;
      }
      differ.push_back(
          fmt::format("{} {}, was {}", name_of(key), number_or_none(mean, seed), number_or_none(before, seed)));
    }
  }
  return differ;
}

}  // namespace tamis::study
