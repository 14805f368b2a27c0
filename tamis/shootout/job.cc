#include "tamis/shootout/job.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/terminal.h"
#include "tamis/eval/position_bins.h"
#include "tamis/eval/task_eval.h"
#include "tamis/infer/decode.h"
#include "tamis/infer/load.h"
#include "tamis/infer/score.h"
#include "tamis/report/run_data.h"
#include "tamis/train/data_set.h"
#include "tamis/train/train.h"

namespace tamis::shootout {
namespace {

using nlohmann::json;

constexpr size_t kCurvePoints = 200;
constexpr const char* kSearchResult = "search.json";

/// What was asked for: a result of another question is none.
json question(const ShootoutRecipe& recipe, const Job& job) {
  const EvaluationRecipe& evaluation = recipe.evaluation;
  if (!job.final) return json::object();
  return {{"tasks", evaluation.tasks},         {"multiples", evaluation.multiples},
          {"instances", evaluation.instances}, {"cell_tokens", evaluation.cell_tokens},
          {"seed", evaluation.seed},           {"expand_windows", evaluation.expand_windows}};
}

std::filesystem::path result_file(const Job& job) {
  return job.run() / (job.final ? "result.json" : kSearchResult);
}

/// The training loss as at most kCurvePoints means.
json curve_of(const Job& job) {
  const json log = report::read_log(read_file(job.run() / "log.jsonl"), job.run() / "log.jsonl");
  const json loss = log.value("/training/loss"_json_pointer, json{{"x", json::array()}, {"y", json::array()}});
  const auto steps = loss["x"].get<std::vector<int64_t>>();
  const auto values = loss["y"].get<std::vector<double>>();
  json curve = {{"tokens", json::array()}, {"loss", json::array()}};
  const size_t each = std::max<size_t>(1, (steps.size() + kCurvePoints - 1) / kCurvePoints);
  for (size_t first = 0; first < steps.size(); first += each) {
    const size_t last = std::min(first + each, steps.size());
    double sum = 0;
    for (size_t i = first; i < last; ++i) sum += values[i];
    curve["tokens"].push_back(steps[last - 1] * job.recipe.train.batch_tokens);
    curve["loss"].push_back(sum / static_cast<double>(last - first));
  }
  return curve;
}

/// Loss of validation examples by position, counted targets only.
json by_position(const infer::LoadedModel& loaded, const train::ValidationSet& validation,
                 const train::TrainRecipe& train) {
  eval::PositionBins bins(train.length);
  const auto count = static_cast<int64_t>(validation.examples.size());
  for (int64_t first = 0; first < count; first += train.batch_size) {
    const auto begin = validation.examples.begin() + first;
    const train::Batch batch = train::make_batch({begin, begin + std::min(train.batch_size, count - first)});
    const at::Tensor logprobs_BT =
        infer::target_logprobs(*loaded.model, batch.tokens_BT, batch.targets_BT.clamp_min(0), {}).contiguous();
    const double* logprobs = logprobs_BT.const_data_ptr<double>();
    const int64_t* targets = batch.targets_BT.const_data_ptr<int64_t>();
    for (int64_t i = 0; i < logprobs_BT.numel(); ++i) {
      if (targets[i] != data::kIgnore) bins.add(i % train.length, -logprobs[i]);
    }
  }
  return eval::to_json(bins.means());
}

/// The decoding state after that many tokens.
int64_t state_bytes(const infer::LoadedModel& loaded, int64_t length) {
  infer::Decoder decoder(*loaded.model, /*sequences=*/1, {});
  decoder.read(at::zeros({1, length}, at::kLong), /*chunk_tokens=*/4096, [](const at::Tensor&, int64_t) {});
  return decoder.state_bytes();
}

/// At the training length, and at the longest that the tasks have.
void add_costs(const ShootoutRecipe& recipe, const infer::LoadedModel& loaded, json& result) {
  const int64_t length = loaded.model->training_length();
  const int64_t longest = length * *std::ranges::max_element(recipe.evaluation.multiples);
  for (const int64_t each : {length, longest}) {
    const double flops = loaded.model->flops_per_token(each).executed(/*accepted_share=*/1);
    result["flops_per_token"].push_back({{"length", each}, {"flops", flops}});
    result["state_bytes"].push_back({{"length", each}, {"bytes", state_bytes(loaded, each)}});
    if (longest == length) break;
  }
}

void add_tasks(const ShootoutRecipe& recipe, const Job& job, const infer::LoadedModel& loaded, std::FILE* messages,
               json& result) {
  make_directories(job.run() / "eval");
  for (const eval::TaskEvalOptions& options : recipe.tasks) {
    ProgressLine progress(messages);
    const auto measured = eval::evaluate_task(loaded, options, [&](double done, double total) {
      progress.update(fmt::format("{} {} {}", job.name, options.task, progress_bar(done, total)));
    });
    progress.clear();
    json task = eval::to_json(measured);
    task["checkpoint"] = loaded.checkpoint.string();
    write_file_atomic(job.run() / "eval" / (options.task + ".json"), task.dump(2) + "\n");
    result["tasks"][options.task] = task["by_length"];
  }
}

double mean_of(const json& losses) {
  double sum = 0;
  for (const json& loss : losses) sum += loss.get<double>();
  return sum / static_cast<double>(losses.size());
}

json measure(const ShootoutRecipe& recipe, const Job& job, const json& trained, at::Device device,
             std::FILE* messages) {
  const infer::LoadedModel loaded = infer::load(job.run(), device);
  const train::DataSet data = train::open_data(job.recipe, *loaded.tokenizer);
  json result = {{"status", "done"},
                 {"seconds", trained["seconds"]},
                 {"tokens", trained["tokens"]},
                 {"tokens_per_second", trained["tokens"].get<double>() / trained["seconds"].get<double>()},
                 {"curve", curve_of(job)}};
  for (const train::ValidationSet& validation : data.validation) {
    const json bins = by_position(loaded, validation, job.recipe.train);
    double sum = 0, tokens = 0;
    for (const json& bin : bins) {
      sum += bin["loss"].get<double>() * bin["tokens"].get<double>();
      tokens += bin["tokens"].get<double>();
    }
    result["validation"][validation.name] = sum / tokens;
    result["by_position"][validation.name] = bins;
  }
  result["loss"] = mean_of(result["validation"]);
  add_costs(recipe, loaded, result);
  if (job.final) add_tasks(recipe, job, loaded, messages, result);
  return result;
}

/// What a search's run of the same recipe said of its training, if that is done.
std::optional<json> trained_before(const Job& job) {
  const std::filesystem::path file = job.run() / kSearchResult;
  if (!job.final || !std::filesystem::exists(file)) return std::nullopt;
  json search = json::parse(read_file(file), nullptr, /*allow_exceptions=*/false);
  if (!search.is_object() || search.value("status", "") != "done") return std::nullopt;
  if (!train::first_difference(search.value("recipe", json()), train::to_json(job.recipe)).empty()) return std::nullopt;
  return search;
}

json train_and_measure(const ShootoutRecipe& recipe, const Job& job, at::Device device, std::FILE* messages) {
  try {
    const auto before = trained_before(job);
    const json trained = before ? *before : train::train(job.recipe, device, messages);
    return measure(recipe, job, trained, device, messages);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDiverged) throw;
    return {{"status", "diverged"}, {"reason", error.what()}};
  }
}

}  // namespace

std::optional<json> finished(const ShootoutRecipe& recipe, const Job& job) {
  if (!std::filesystem::exists(result_file(job))) return std::nullopt;
  json result = json::parse(read_file(result_file(job)), nullptr, /*allow_exceptions=*/false);
  if (!result.is_object() || !result.contains("recipe") || !result.contains("question")) return std::nullopt;
  const std::string difference = train::first_difference(result["recipe"], train::to_json(job.recipe));
  if (!difference.empty()) {
    fail(ExitCode::kUsage, "{}: belongs to another recipe: {}; choose another shootout.dir", job.run().string(),
         difference);
  }
  if (result["question"] != question(recipe, job)) return std::nullopt;
  return result;
}

json run_job(const ShootoutRecipe& recipe, const Job& job, at::Device device, std::FILE* messages) {
  if (auto result = finished(recipe, job)) return *result;
  json result = train_and_measure(recipe, job, device, messages);
  result["job"] = job.name;
  result["recipe"] = train::to_json(job.recipe);
  result["question"] = question(recipe, job);
  write_file_atomic(result_file(job), result.dump(2) + "\n");
  return result;
}

}  // namespace tamis::shootout
