#include "tamis/shootout/job.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/terminal.h"
#include "tamis/base/version.h"
#include "tamis/eval/position_bins.h"
#include "tamis/eval/task_eval.h"
#include "tamis/infer/decode.h"
#include "tamis/infer/load.h"
#include "tamis/infer/score.h"
#include "tamis/train/data_set.h"
#include "tamis/train/train.h"

namespace tamis::shootout {
namespace {

using nlohmann::json;

constexpr size_t kCurvePoints = 200;
constexpr const char* kSearchResult = "search.json";

std::filesystem::path result_file(const Job& job) {
  return job.run() / (job.final ? "result.json" : kSearchResult);
}

/// The JSON object in the file; none when it is missing or damaged, in which case it is written again.
std::optional<json> read_object(const std::filesystem::path& file) {
  if (!std::filesystem::exists(file)) return std::nullopt;
  json found = try_parse_json(read_file(file));
  return found.is_object() ? std::optional(std::move(found)) : std::nullopt;
}

bool is_whole(const json& result, bool final) {
  const std::string status = text_at(result, "status");
  if (status == "diverged") return true;
  std::vector<const char*> keys = {"seconds", "tokens", "tokens_per_second", "loss", "validation", "by_position"};
  if (final) keys.insert(keys.end(), {"flops_per_token", "state_bytes"});
  return status == "done" && std::ranges::all_of(keys, [&](const char* key) { return result.contains(key); });
}

/// The settings of the measurement. A result of other settings or of another version is measured again.
json question(const ShootoutRecipe& recipe, const Job& job) {
  const EvaluationRecipe& evaluation = recipe.evaluation;
  if (!job.final) return {{"version", kVersion}};
  return {{"version", kVersion},
          {"tasks", evaluation.tasks},
          {"multiples", evaluation.multiples},
          {"instances", evaluation.instances},
          {"cell_tokens", evaluation.cell_tokens},
          {"seed", evaluation.seed},
          {"expand_windows", evaluation.expand_windows}};
}

/// How a job's training differs from the stored one, in the words of train::first_difference. Unlike there, the numbers
/// of steps and of validation tokens must be equal, because the results of all mixers are compared.
std::string difference(const ShootoutRecipe& recipe, const Job& job, const json& kept) {
  const json before = kept.value("recipe", json::object()), now = train::to_json(job.recipe);
  for (const auto& key : {"/train/steps"_json_pointer, "/train/validate_tokens"_json_pointer}) {
    if (before.contains(key) && before[key] == now[key]) continue;
    return fmt::format("{} was {}, is {}", key.to_string(), shown(before.value(key, json())), shown(now[key]));
  }
  for (const auto& [source, checksum] : recipe.checksums) {
    if (kept.value("checksums", json::object()).value(source, "") == checksum) continue;
    return fmt::format("the text of data.sources.{} has changed", source);
  }
  return train::first_difference(before, now);
}

/// The training loss, averaged to at most kCurvePoints points.
json curve_of(const Job& job) {
  std::vector<std::pair<int64_t, double>> points;  // step, loss
  std::istringstream lines(read_file(job.run() / "log.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    const json record = try_parse_json(line);
    if (!record.is_object() || text_at(record, "type") != "train" || !record.contains("loss") ||
        !record["loss"].is_number() || !record.contains("step") || !record["step"].is_number_integer())
      continue;
    points.emplace_back(record["step"].get<int64_t>(), record["loss"].get<double>());
  }
  json curve = {{"tokens", json::array()}, {"loss", json::array()}};
  const size_t each = std::max<size_t>(1, (points.size() + kCurvePoints - 1) / kCurvePoints);
  for (size_t first = 0; first < points.size(); first += each) {
    const size_t last = std::min(first + each, points.size());
    double sum = 0;
    for (size_t i = first; i < last; ++i) sum += points[i].second;
    curve["tokens"].push_back(points[last - 1].first * job.recipe.train.batch_tokens);
    curve["loss"].push_back(sum / static_cast<double>(last - first));
  }
  return curve;
}

/// Loss of validation examples by position; ignored targets do not count.
eval::PositionBins by_position(const infer::LoadedModel& loaded, const train::ValidationSet& validation,
                               const train::TrainRecipe& train) {
  eval::PositionBins bins(train.length);
  const auto count = static_cast<int64_t>(validation.examples.size());
  const int64_t rows = train.batch_size / train.accumulation;
  for (int64_t first = 0; first < count; first += rows) {
    const auto begin = validation.examples.begin() + first;
    const train::Batch batch = train::make_batch({begin, begin + std::min(rows, count - first)});
    const at::Tensor logprobs_BT =
        infer::target_logprobs(*loaded.model, batch.tokens_BT, batch.targets_BT.clamp_min(0), {}).contiguous();
    const double* logprobs = logprobs_BT.const_data_ptr<double>();
    const int64_t* targets = batch.targets_BT.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < logprobs_BT.numel(); ++i) {
      if (targets[i] != data::kIgnore) bins.add(i % train.length, -logprobs[i]);
    }
  }
  return bins;
}

/// Measures the trained model of a job.
class Measurement {
 public:
  Measurement(const ShootoutRecipe& recipe, const Job& job, at::Device device, std::FILE* messages,
              const train::StopSignals& signals)
      : recipe_(recipe), job_(job), messages_(messages), signals_(signals), loaded_(infer::load(job.run(), device)) {}

  void add_losses(json& result) const {
    const train::DataSet data = train::open_data(job_.recipe, *loaded_.tokenizer);
    double sum = 0;
    for (const train::ValidationSet& validation : data.validation) {
      const eval::PositionBins bins = by_position(loaded_, validation, job_.recipe.train);
      result["validation"][validation.name] = bins.mean();
      result["by_position"][validation.name] = eval::to_json(bins.means());
      sum += bins.mean();
      stop_if_asked(job_.name, signals_);
    }
    result["loss"] = sum / static_cast<double>(data.validation.size());
  }

  /// Costs at the training length and at the longest length of the tasks, with windows as in the tasks.
  void add_costs(json& result) const {
    const int64_t length = loaded_.model->training_length();
    const int64_t longest = length * *std::ranges::max_element(recipe_.evaluation.multiples);
    const bool expand = expands_windows();
    for (const int64_t each : {length, longest}) {
      const double flops = loaded_.model->flops_per_token(each, expand).executed(/*accepted_share=*/1);
      result["flops_per_token"].push_back({{"length", each}, {"flops", flops}});
      result["state_bytes"].push_back({{"length", each}, {"bytes", state_bytes(each)}});
      if (longest == length) break;
    }
  }

  void add_tasks(json& result) const {
    make_directories(job_.run() / "eval");
    for (const eval::TaskEvalOptions& options : recipe_.tasks) {
      result["tasks"][options.task] = evaluated(options)["by_length"];
    }
  }

 private:
  /// True when the recipe expands windows and the model has windows to expand.
  bool expands_windows() const { return recipe_.evaluation.expand_windows && !loaded_.model->tiles().empty(); }

  /// Bytes of the decoding state after `length` tokens, allocated at once.
  int64_t state_bytes(int64_t length) const {
    infer::Decoder decoder(*loaded_.model, /*sequences=*/1, {.expand_windows = expands_windows()});
    const int64_t chunk = std::clamp<int64_t>(length / 2, 1, 4096);  // the decoder reserves texts longer than a chunk
    decoder.read(at::zeros({1, length}, at::kLong), chunk,
                 [&](const at::Tensor&, int64_t) { stop_if_asked(job_.name, signals_); });
    return decoder.state_bytes();
  }

  /// The result of `tamis eval`, also written to the same file. An existing result for the same settings and checkpoint
  /// is reused.
  json evaluated(eval::TaskEvalOptions options) const {
    options.expand_windows = expands_windows();
    const std::filesystem::path file = job_.run() / "eval" / (options.task + ".json");
    json asked = eval::to_json(eval::TaskResult{.options = options});
    asked["checkpoint"] = loaded_.checkpoint.string();
    for (const char* answer : {"seconds", "cells", "by_length"}) asked.erase(answer);
    if (auto before = read_object(file); before && before->contains("by_length") && holds(*before, asked))
      return *before;
    ProgressLine progress(messages_);
    json task = eval::to_json(eval::evaluate_task(loaded_, options, [&](double done, double total) {
      stop_if_asked(job_.name, signals_);
      progress.update(fmt::format("{} {} {}", job_.name, options.task, progress_bar(done, total)));
    }));
    task["checkpoint"] = loaded_.checkpoint.string();
    write_file_atomic(file, task.dump(2) + "\n");
    return task;
  }

  static bool holds(const json& found, const json& asked) {
    return std::ranges::all_of(asked.items(), [&](const auto& item) {
      return found.contains(item.key()) && found[item.key()] == item.value();
    });
  }

  const ShootoutRecipe& recipe_;
  const Job& job_;
  std::FILE* messages_;
  const train::StopSignals& signals_;
  const infer::LoadedModel loaded_;
};

/// The result of the search run with the same recipe, if there is one: its training need not be repeated.
std::optional<json> trained_before(const ShootoutRecipe& recipe, const Job& job) {
  if (!job.final) return std::nullopt;
  auto search = read_object(job.run() / kSearchResult);
  if (!search || !is_whole(*search, /*final=*/false) || (*search)["status"] != "done") return std::nullopt;
  return difference(recipe, job, *search).empty() ? search : std::nullopt;
}

json train_and_measure(const ShootoutRecipe& recipe, const Job& job, at::Device device, std::FILE* messages,
                       const train::StopSignals& signals) {
  const auto before = trained_before(recipe, job);
  const json trained = before ? *before : train::train(job.recipe, device, messages);
  stop_if_asked(job.name, signals);
  json result = {{"status", "done"},
                 {"seconds", trained["seconds"]},
                 {"tokens", trained["tokens"]},
                 {"tokens_per_second", trained["tokens"].get<double>() / trained["seconds"].get<double>()},
                 {"threads", before ? before->value("threads", json()) : json(at::get_num_threads())},
                 {"curve", curve_of(job)}};
  const Measurement measurement(recipe, job, device, messages, signals);
  measurement.add_losses(result);
  if (!job.final) return result;
  measurement.add_costs(result);
  measurement.add_tasks(result);
  return result;
}

}  // namespace

void stop_if_asked(const std::string& what, const train::StopSignals& signals) {
  const int signal = signals.received();
  if (signal == 0) return;
  fail(train::exit_code_of(signal), "{}: stopped by {}; run the same command to resume", what,
       train::name_of_signal(signal));
}

std::optional<json> finished(const ShootoutRecipe& recipe, const Job& job) {
  auto result = read_object(result_file(job));
  if (!result || !is_whole(*result, job.final) || !result->contains("recipe")) return std::nullopt;
  const std::string other = difference(recipe, job, *result);
  if (!other.empty()) {
    fail(ExitCode::kUsage, "{}: belongs to another recipe: {}; choose another shootout.dir", job.run().string(), other);
  }
  return result->value("question", json()) == question(recipe, job) ? result : std::nullopt;
}

json run_job(const ShootoutRecipe& recipe, const Job& job, at::Device device, std::FILE* messages,
             const train::StopSignals& signals) {
  if (auto result = finished(recipe, job)) return *result;
  json result;
  try {
    result = train_and_measure(recipe, job, device, messages, signals);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDiverged) throw;
    result = {{"status", "diverged"}, {"reason", error.what()}};
  }
  result["job"] = job.name;
  result["recipe"] = train::to_json(job.recipe);
  result["checksums"] = recipe.checksums;
  result["question"] = question(recipe, job);
  write_file_atomic(result_file(job), result.dump(2, ' ', false, json::error_handler_t::replace) + "\n");
  return result;
}

}  // namespace tamis::shootout
