#include "tamis/study/job.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/process.h"
#include "tamis/base/terminal.h"
#include "tamis/base/version.h"
#include "tamis/study/measure.h"
#include "tamis/train/machine.h"
#include "tamis/train/run_directory.h"
#include "tamis/train/train.h"

namespace tamis::study {
namespace {

using nlohmann::json;

/// Steps that differ from the recipe's shorten the warm-up in proportion.
void set_steps(train::TrainRecipe& train, int64_t steps) {
  const double share = static_cast<double>(steps) / static_cast<double>(train.steps);
  train.warmup_steps = static_cast<int64_t>(std::llround(static_cast<double>(train.warmup_steps) * share));
  train.steps = steps;
}

/// "seed-1"
std::string seed_leaf(int64_t seed) {
  return fmt::format("seed-{}", seed);
}

/// Makes a job begin with the run of the point's `start_from` that has the same seed.
void start_job(const StudyRecipe& study, const Start& start, Job& job) {
  const Point& before = study.points[start.point];
  job.after = before.name + "/" + seed_leaf(job.seed);
  const std::filesystem::path run = study.runs / before.name / seed_leaf(job.seed);
  job.recipe.train.start_from = train::checkpoint_directory(run, start.step).string();
}

Job make_job(const StudyRecipe& study, size_t p, size_t option, int64_t seed, bool search) {
  const Point& point = study.points[p];
  Job job{.name = point.name, .point = p, .option = option, .search = search, .seed = seed};
  std::string leaf = seed_leaf(seed);
  if (!study.model) leaf = "functions";
  std::string chosen;  // "lr-0.01"
  if (study.choose) chosen = fmt::format("{}-{}", study.choose->column(), plain_text(point.options[option].value));
  job.name += '/';
  job.name += search ? chosen : leaf;
  job.directory = study.runs / point.name / (study.choose ? chosen + "_" + leaf : leaf);
  if (!study.model) return job;
  job.recipe = point.options[option].recipe;
  job.recipe.train.seed = seed;
  const int64_t steps = search && study.choose->steps > 0 ? study.choose->steps : job.recipe.train.steps;
  if (steps != job.recipe.train.steps) {
    set_steps(job.recipe.train, steps);
    job.directory += fmt::format("_steps-{}", steps);
  }
  job.recipe.run.dir = job.directory.string();
  if (point.start) start_job(study, *point.start, job);
  return job;
}

/// The settings of the measurement and the columns of its rows. A result of others or of another version is measured
/// again.
json question(const StudyRecipe& recipe, const Job& job) {
  json question = {{"version", kVersion}};
  if (job.search) return question;
  question["columns"] = recipe.points[job.point].columns;
  question["evaluations"] = describe(recipe, job);
  return question;
}

/// What a job's model is trained on: its recipe, the checksums of its texts and `start`, which is {step, recipe,
/// checksums, start} of the run that it starts from, or null.
json training_of(const StudyRecipe& study, const Job& job) {
  const Point& point = study.points[job.point];
  json training = {{"recipe", train::to_json(job.recipe)}, {"checksums", point.checksums}, {"start", json()}};
  if (!point.start) return training;
  training["recipe"]["train"]["start_from"] = study.points[point.start->point].name;  // a directory may move
  training["start"] = training_of(study, make_job(study, point.start->point, 0, job.seed, /*search=*/false));
  training["start"]["step"] = point.start->step;
  return training;
}

/// How the training of a run differs from another one; empty if it does not.
std::string difference(const json& before, const json& now) {
  const json checksums = before.value("checksums", json::object());
  for (const auto& [source, checksum] : now["checksums"].items()) {
    if (checksums.value(source, json()) == checksum) continue;
    return fmt::format("the text of data.sources.{} has changed", source);
  }
  const std::string other = train::first_difference(before.value("recipe", json::object()), now["recipe"]);
  if (!other.empty() || now["start"].is_null()) return other;
  const json start = before.value("start", json());
  const std::string name = now["recipe"]["train"]["start_from"];
  if (!start.is_object()) return fmt::format("nothing is stored about {}, from which it starts", name);
  if (start.value("step", json()) != now["start"]["step"]) {
    return fmt::format("it started from step {} of {}", start.value("step", json()).dump(), name);
  }
  const std::string earlier = difference(start, now["start"]);
  return earlier.empty() ? "" : fmt::format("{}, from which it starts: {}", name, earlier);
}

/// How a job's training differs from the stored one; the numbers of steps and of validation tokens count too, because
/// the results of all jobs are compared.
std::string difference(const StudyRecipe& study, const Job& job, const json& kept) {
  if (!study.model) return "";
  const json before = kept.value("recipe", json::object()), now = training_of(study, job);
  for (const auto& key : {"/train/steps"_json_pointer, "/train/validate_tokens"_json_pointer}) {
    if (before.contains(key) && before[key] == now["recipe"][key]) continue;
    return fmt::format("{} was {}, is {}", key.to_string(), shown(before.value(key, json())),
                       shown(now["recipe"][key]));
  }
  return difference(kept, now);
}

/// The newest result of the same training, also of another study that shares the runs.
std::optional<json> trained_before(const StudyRecipe& study, const Job& job) {
  std::optional<json> newest;
  if (!std::filesystem::is_directory(job.directory)) return newest;
  for (const auto& entry : std::filesystem::directory_iterator(job.directory)) {
    const std::string name = entry.path().filename().string();
    if (name != "search.json" && !(name.starts_with("result-") && name.ends_with(".json"))) continue;
    auto stored = try_read_object(entry.path());
    if (!stored || !is_done(*stored) || !stored->contains("tokens") || !stored->contains("seconds")) continue;
    if (!difference(study, job, *stored).empty()) continue;
    if (!newest || text_at(*newest, "time") < text_at(*stored, "time")) newest = std::move(stored);
  }
  return newest;
}

std::string belongs_elsewhere(const StudyRecipe& study, const Job& job, const std::string& difference) {
  return fmt::format("{}: belongs to another recipe: {}; choose another {}", job.directory.string(), difference,
                     study.runs == study.dir ? "study.dir" : "study.runs");
}

/// Notes in the run what it starts from. Throws kUsage when it has started from something else, and when the run to
/// start from has not kept that checkpoint: another study that shares that run may not have kept it.
void check_start(const StudyRecipe& study, const Job& job) {
  if (job.after.empty()) return;
  const json training = training_of(study, job);
  const std::filesystem::path note = job.directory / ".start.json";  // train() allows hidden files
  if (!train::saved_steps(job.directory).empty()) {
    const auto noted = try_read_object(note);
    const std::string other = noted ? difference(*noted, training) : "";
    if (!other.empty()) throw Error(ExitCode::kUsage, belongs_elsewhere(study, job, other));
    return;
  }
  const std::filesystem::path checkpoint = job.recipe.train.start_from;
  if (std::filesystem::exists(checkpoint)) {
    make_directories(job.directory);
    write_file_atomic(note, json_text(training, 1));
    return;
  }
  fail(ExitCode::kUsage,
       "{}: starts from {}, which does not exist; remove {} to train it again, with the results of all studies that "
       "share it",
       job.name, checkpoint.string(), checkpoint.parent_path().parent_path().string());
}

/// The rows of a run that is stored as diverged by this version; none if it is not. It need not be trained again.
std::optional<json> diverged_before(const StudyRecipe& study, const Job& job) {
  const auto stored = try_read_object(result_file(study, job));
  if (!stored || text_at(*stored, "status") != "diverged" || text_at(*stored, "version") != kVersion) {
    return std::nullopt;
  }
  if (!difference(study, job, *stored).empty()) return std::nullopt;
  return json{{"status", "diverged"},
              {"reason", text_at(*stored, "reason")},
              {"rows", diverged_rows(study, job)},
              {"threads", stored->value("threads", json())},
              {"earlier_seconds", stored->value("job_seconds", 0.0)},
              {"earlier_processor_seconds", stored->value("job_processor_seconds", json())}};
}

/// The result of a job that ended with an error of its own.
json failed(const std::string& reason) {
  return {{"status", "failed"}, {"reason", one_line(reason)}, {"rows", json::array()}};
}

json train_and_measure(const StudyRecipe& study, const Job& job, at::Device device, std::FILE* messages,
                       const train::StopSignals& signals) {
  json result = {{"status", "done"}, {"threads", at::get_num_threads()}};
  if (study.train) {
    const auto before = trained_before(study, job);
    if (!before) check_start(study, job);
    json trained;
    if (before) {
      trained = *before;
    } else {
      const bool resumed = !train::saved_steps(job.directory).empty();  // then an earlier process did a part of it
      const double start = processor_seconds();
      trained = train::train(job.recipe, device, messages);
      trained["processor_seconds"] = resumed ? json() : json(processor_seconds() - start);
    }
    for (const char* key : {"seconds", "processor_seconds", "tokens"}) result[key] = trained.value(key, json());
    if (before || result["processor_seconds"].is_null()) {
      result["earlier_processor_seconds"] = result["processor_seconds"];
    }
    if (before) {
      result["threads"] = before->value("threads", json());
      result["earlier_seconds"] = before->value("seconds", 0.0);  // the training is part of what this study costs
    }
    stop_if_asked(job.name, signals);
  }
  result["rows"] = measure(study, job, result, device, messages, signals);
  return result;
}

}  // namespace

bool is_done(const json& result) {
  return text_at(result, "status") == "done";
}

void forget_failure(const StudyRecipe& study, const Job& job) {
  const auto stored = try_read_object(result_file(study, job));
  if (!stored || text_at(*stored, "status") != "failed") return;
  std::error_code gone;  // another process may have removed it
  std::filesystem::remove(result_file(study, job), gone);
}

std::filesystem::path result_file(const StudyRecipe& study, const Job& job) {
  return job.directory / (job.search ? "search.json" : "result-" + study.id + ".json");
}

std::vector<Job> search_jobs(const StudyRecipe& recipe, size_t point) {
  std::vector<Job> jobs;
  if (!recipe.choose || !recipe.train) return jobs;
  for (size_t option = 0; option < recipe.points[point].options.size(); ++option) {
    jobs.push_back(make_job(recipe, point, option, recipe.seeds.front(), /*search=*/true));
  }
  return jobs;
}

std::vector<Job> final_jobs(const StudyRecipe& recipe, size_t point, size_t option) {
  if (!recipe.model) return {make_job(recipe, point, option, recipe.seeds.front(), /*search=*/false)};
  std::vector<Job> jobs;
  for (const int64_t seed : recipe.seeds) jobs.push_back(make_job(recipe, point, option, seed, /*search=*/false));
  return jobs;
}

bool searched(const StudyRecipe& recipe, size_t point, const Results& results) {
  const auto jobs = search_jobs(recipe, point);
  return std::ranges::all_of(jobs, [&](const Job& job) { return results.contains(job.name); });
}

std::optional<size_t> chosen_option(const StudyRecipe& recipe, size_t point, const Results& results) {
  const auto jobs = search_jobs(recipe, point);
  if (jobs.empty()) return 0;
  if (!searched(recipe, point, results)) return std::nullopt;
  std::optional<size_t> chosen;
  double least = 0;
  for (const Job& job : jobs) {
    const json& result = results.at(job.name);
    if (!is_done(result)) continue;
    for (const json& row : result["rows"]) {
      if (row["metric"] != "search_loss" || !row["value"].is_number()) continue;
      if (chosen && row["value"] >= least) continue;
      chosen = job.option;
      least = row["value"];
    }
  }
  return chosen;
}

std::string edge_of(const Point& point, size_t option) {
  const json& value = point.options[option].value;
  if (!value.is_number() || point.options.size() < 3) return "";
  const auto any = [&](const auto& is_beyond) {
    return std::ranges::any_of(point.options, [&](const Option& other) { return is_beyond(other.value); });
  };
  if (!any([&](const json& other) { return other < value; })) return "smallest";
  if (!any([&](const json& other) { return other > value; })) return "largest";
  return "";
}

void stop_if_asked(const std::string& what, const train::StopSignals& signals) {
  const int signal = signals.received();
  if (signal == 0) return;
  fail(train::exit_code_of(signal), "{}: stopped by {}; run the same command to resume", what,
       train::name_of_signal(signal));
}

std::optional<json> finished(const StudyRecipe& recipe, const Job& job) {
  auto result = try_read_object(result_file(recipe, job));
  if (!result || !result->contains("status") || !result->contains("rows")) return std::nullopt;
  const json& rows = (*result)["rows"];
  const auto whole = [](const json& row) { return row.contains("metric") && row.contains("value"); };
  if (!rows.is_array() || !std::ranges::all_of(rows, whole)) return std::nullopt;
  const std::string other = difference(recipe, job, *result);
  if (!other.empty()) throw Error(ExitCode::kUsage, belongs_elsewhere(recipe, job, other));
  return result->value("question", json()) == question(recipe, job) ? result : std::nullopt;
}

json processor_seconds_of(const Results& results) {
  double seconds = 0;
  for (const auto& [name, result] : results) {
    const json of_job = result.value("job_processor_seconds", json());
    if (!of_job.is_number()) return {};
    seconds += of_job.get<double>();
  }
  return seconds;
}

json threads_of(const Results& results) {
  std::set<int64_t> threads;
  for (const auto& [name, result] : results) {
    const json of_job = result.value("threads", json());
    if (!of_job.is_number()) return {};
    threads.insert(of_job.get<int64_t>());
  }
  return threads;
}

json run_job(const StudyRecipe& recipe, const Job& job, at::Device device, std::FILE* messages,
             const train::StopSignals& signals) {
  if (auto result = finished(recipe, job)) return *result;
  const double start = now_seconds(), processor_start = processor_seconds();
  json result;
  try {
    auto diverged = diverged_before(recipe, job);
    result = diverged ? std::move(*diverged) : train_and_measure(recipe, job, device, messages, signals);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kDiverged) {
      result = {{"status", "diverged"},
                {"reason", error.what()},
                {"threads", at::get_num_threads()},
                {"rows", diverged_rows(recipe, job)}};
    } else if (error.code() == ExitCode::kRuntime && signals.received() == 0) {
      result = failed(error.what());
    } else {
      throw;  // what concerns other jobs as well: the recipe, the disk, a signal
    }
  } catch (const std::exception& error) {
    result = failed(message_of(error));
  }
  result["job"] = job.name;
  result["job_seconds"] = now_seconds() - start + result.value("earlier_seconds", 0.0);
  const json earlier = result.value("earlier_processor_seconds", json(0.0));
  result["job_processor_seconds"] =
      earlier.is_number() ? json(processor_seconds() - processor_start + earlier.get<double>()) : json();
  if (recipe.model) result.update(training_of(recipe, job));
  result["question"] = question(recipe, job);
  result["version"] = kVersion;
  result["commit"] = train::build_commit();
  result["time"] = train::utc_now();
  make_directories(job.directory);
  write_file_atomic(result_file(recipe, job), json_text(result, 1));
  return result;
}

}  // namespace tamis::study
