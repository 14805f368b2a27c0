#include "tamis/study/measure.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/terminal.h"
#include "tamis/eval/loss_eval.h"
#include "tamis/eval/position_bins.h"
#include "tamis/eval/task_eval.h"
#include "tamis/infer/decode.h"
#include "tamis/infer/load.h"
#include "tamis/infer/score.h"
#include "tamis/study/checkpoint_choice.h"
#include "tamis/study/curves.h"
#include "tamis/study/functions.h"
#include "tamis/study/needle_trials.h"
#include "tamis/study/recall.h"
#include "tamis/study/relevance.h"
#include "tamis/train/data_set.h"
#include "tamis/train/plan.h"

namespace tamis::study {
namespace {

using nlohmann::json;

constexpr int64_t kMostValues = 1 << 20;  // of kind parameters
constexpr int64_t kTimedTokens = 16;      // of kind speed

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

class Measurement {
 public:
  Measurement(const StudyRecipe& study, const Job& job, at::Device device, std::FILE* messages,
              const train::StopSignals& signals)
      : study_(study),
        job_(job),
        point_(study.points[job.point]),
        device_(device),
        messages_(messages),
        signals_(signals) {
    columns_ = point_.columns;
    if (study.model) columns_["seed"] = job.seed;
    if (study.choose) columns_[study.choose->column()] = point_.options[job.option].value;
  }

  void add(const std::string& metric, double value, const json& more = json::object()) {
    json row = columns_;
    row.update(more);
    row["metric"] = metric;
    row["value"] = std::isfinite(value) ? json(value) : json();
    rows_.push_back(std::move(row));
  }

  /// A value that does not depend on the seed.
  void add_exact(const std::string& metric, double value, const json& more = json::object()) {
    add(metric, value, more);
    rows_.back().erase("seed");
  }

  Rows take() { return std::move(rows_); }

  void add_sizes() {
    add_exact("parameters", static_cast<double>(point_.parameters.total));
    add_exact("parameters_without_embedding", static_cast<double>(point_.parameters.without_embedding));
  }

  void add_search_loss() { add("search_loss", losses(/*rows=*/false)); }

  void add_training(const json& trained) {
    const train::TrainRecipe& train = job_.recipe.train;
    const auto taken_over = static_cast<double>(steps_taken_over(point_) * train.batch_tokens);
    const double seconds = trained["seconds"], tokens = trained["tokens"].get<double>() - taken_over;
    add("training_seconds", seconds);
    add("tokens_per_second", tokens / seconds);
    add("diverged", 0);
    add_curves(read_file(job_.directory / "log.jsonl"), train.batch_tokens, adder(json::object()));
    add("validation_loss", losses(/*rows=*/true));
  }

  void add(const Evaluation& evaluation) {
    if (!matches(point_.columns, evaluation.where)) return;
    if (evaluation.kind == "function") return add_function(evaluation);
    if (evaluation.kind == "heads") return add_heads();
    if (evaluation.kind == "parameters") return add_parameters(evaluation);
    if (evaluation.kind == "lm_eval") {
      add_lm_eval(job_.directory, evaluation.lm_eval, adder(json::object()));
      return stop_if_asked(job_.name, signals_);
    }
    for (const json& change : evaluation.changes) {
      if (evaluation.kind == "flops") {
        add_flops(evaluation, change);
        continue;
      }
      if (evaluation.checkpoint_length == 0) {
        add(evaluation, load(change), change);
        continue;
      }
      add_newest_and_chosen(evaluation, change);
    }
  }

 private:
  void add(const Evaluation& evaluation, const infer::LoadedModel& loaded, json columns) {
    const size_t first = rows_.size();
    for (const bool expand : evaluation.expand_windows) {
      if (evaluation.expand_windows.size() > 1) columns["expand_windows"] = expand;
      const bool has_windows = !loaded.model->screening_heads().empty(), expands = expand && has_windows;
      if (!has_windows && rows_.size() > first) {
        add_again(first, rows_.size(), "expand_windows", expand);
        continue;
      }
      if (evaluation.kind == "task") add_task(evaluation, loaded, expands, columns);
      if (evaluation.kind == "recall") add_recall_of(evaluation, loaded, expands, columns);
      if (evaluation.kind == "loss") add_loss(evaluation, loaded, expands, columns);
      if (evaluation.kind == "costs") add_costs(evaluation, loaded, expands, columns);
      if (evaluation.kind == "speed") add_speed(evaluation, loaded, expands, columns);
      if (evaluation.kind == "relevance" && is_first_seed()) add_relevance_of(evaluation, loaded, expands, columns);
      stop_if_asked(job_.name, signals_);
    }
  }

  void add_newest_and_chosen(const Evaluation& evaluation, const json& change) {
    json columns = change;
    columns["checkpoint"] = "newest";
    const size_t first = rows_.size();
    add(evaluation, load(change), columns);
    const size_t last = rows_.size();
    const Checkpoints checkpoints = checkpoints_of(job_.directory);
    const int64_t chosen = choose_step(evaluation, change, checkpoints);
    if (chosen != checkpoints.begin()->first) {
      columns["checkpoint"] = "chosen";
      return add(evaluation, infer::load(checkpoints.at(chosen), device_, change), columns);
    }
    add_again(first, last, "checkpoint", "chosen");  // the newest is the best: measured already
  }

  /// Adds rows [first, last) again with `value` in `column`.
  void add_again(size_t first, size_t last, const char* column, const json& value) {
    for (size_t i = first; i < last; ++i) {
      json row = rows_[i];
      row[column] = value;
      rows_.push_back(std::move(row));
    }
  }

  /// The step that best_step() names.
  int64_t choose_step(const Evaluation& evaluation, const json& change, const Checkpoints& checkpoints) {
    const eval::TaskEvalOptions options = choice_of_checkpoint(evaluation);
    const int64_t chosen =
        best_step(checkpoints, evaluation.checkpoint_length, [&](const std::filesystem::path& checkpoint) {
          stop_if_asked(job_.name, signals_);
          return eval::evaluate_task(infer::load(checkpoint, device_, change), options);
        });
    json columns = change;
    columns["task"] = options.task;
    add("chosen_step", static_cast<double>(chosen), columns);
    return chosen;
  }

  infer::LoadedModel load(const json& change) const {
    if (study_.train) return infer::load(job_.directory, device_, change);
    json config = job_.recipe.model;
    config.update(change);
    auto model = models::make_model(models::complete_config(config), static_cast<uint64_t>(job_.seed));
    if (device_ != at::kCPU) models::move_to(*model, device_);
    return {
        .checkpoint = {}, .model = std::move(model), .tokenizer = train::open_tokenizer(job_.recipe.data.tokenizer)};
  }

  /// The mean over the sources; with `rows`, also the loss of each source and by position.
  double losses(bool rows) {
    const infer::LoadedModel loaded = load(json::object());
    const train::DataSet data = train::open_data(job_.recipe, *loaded.tokenizer);
    double sum = 0;
    for (const train::ValidationSet& validation : data.validation) {
      const eval::PositionBins bins = by_position(loaded, validation, job_.recipe.train);
      sum += bins.mean();
      stop_if_asked(job_.name, signals_);
      if (!rows) continue;
      add("source_loss", bins.mean(), {{"source", validation.name}});
      add_positions("loss_at", bins.means(), {{"source", validation.name}});
    }
    return sum / static_cast<double>(data.validation.size());
  }

  void add_positions(const std::string& metric, const std::vector<eval::PositionBin>& bins, json columns) {
    for (const eval::PositionBin& bin : bins) {
      columns["position"] = bin.first;
      columns["last_position"] = bin.last;
      add(metric, bin.loss, columns);
    }
  }

  void add_task(const Evaluation& evaluation, const infer::LoadedModel& loaded, bool expand, const json& columns) {
    eval::TaskEvalOptions options = evaluation.task;
    options.expand_windows = expand;
    std::optional<ProgressLine> progress;  // elsewhere the messages about jobs suffice
    if (is_terminal(messages_)) progress.emplace(messages_);
    const eval::TaskResult result = eval::evaluate_task(loaded, options, [&](double done, double total) {
      stop_if_asked(job_.name, signals_);
      if (progress) progress->update(fmt::format("{} {} {}", job_.name, options.task, progress_bar(done, total)));
    });
    const json table = eval::to_json(result);
    for (const json& cell : table["cells"]) {
      json at = columns;
      at["task"] = options.task;
      for (const char* key : {"length", "depth", "instances"}) {
        if (cell.contains(key)) at[key] = cell[key];
      }
      for (const char* key : {"score", "exact_match", "needle_score", "needle_score_best_head"}) {
        if (cell.contains(key)) add(key, cell[key], at);
      }
    }
    json of_task = columns;
    of_task["task"] = options.task;
    add_needle_trials(result, adder(of_task));
  }

  void add_recall_of(const Evaluation& evaluation, const infer::LoadedModel& loaded, bool expand, const json& columns) {
    eval::TaskEvalOptions options = evaluation.task;
    options.expand_windows = expand;
    add_recall(*loaded.model, options, /*map=*/is_first_seed(), adder(columns));
  }

  void add_relevance_of(const Evaluation& evaluation, const infer::LoadedModel& loaded, bool expand, json columns) {
    const train::DataSet data = train::open_data(job_.recipe, *loaded.tokenizer);
    if (data.validation.empty()) {
      fail(ExitCode::kUsage, "{}: kind relevance reads validation data, but no source has any", job_.name);
    }
    for (const int64_t length : evaluation.lengths) {
      std::vector<int64_t> tokens = data.validation.front().examples.front().tokens;
      tokens.resize(static_cast<size_t>(length));
      columns["length"] = length;
      add_relevance(*loaded.model, tokens, evaluation.heads, expand, adder(columns));
    }
  }

  bool is_first_seed() const { return job_.seed == study_.seeds.front(); }

  /// Adds rows with these columns in addition to their own.
  AddRow adder(const json& columns) {
    return [this, columns](const std::string& metric, double value, json at) {
      at.update(columns);
      add(metric, value, at);
    };
  }

  void add_loss(const Evaluation& evaluation, const infer::LoadedModel& loaded, bool expand, const json& columns) {
    std::vector<std::string> texts;
    for (const std::string& file : evaluation.texts) texts.push_back(read_file(file));
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    eval::LossEvalOptions options = evaluation.loss;
    options.expand_windows = expand;
    for (const int64_t window : evaluation.lengths) {
      options.window_tokens = window;
      const eval::LossResult result =
          eval::evaluate_loss(loaded, views, options, [&](double, double) { stop_if_asked(job_.name, signals_); });
      json at = columns;
      at["length"] = window;
      add("nats_per_token", result.nats_per_token, at);
      add("nats_per_byte", result.nats_per_byte, at);
      add("perplexity", result.perplexity, at);
      add_positions("text_loss_at", result.by_position, at);
      for (const eval::PositionBin& point : result.points) {
        at["position"] = (point.first + point.last) / 2;
        add("text_loss_curve", point.loss, at);
      }
    }
  }

  void add_costs(const Evaluation& evaluation, const infer::LoadedModel& loaded, bool expand, const json& columns) {
    for (const int64_t length : evaluation.lengths) {
      json at = columns;
      at["length"] = length;
      add("flops_per_token", loaded.model->flops_per_token(length, expand).executed(/*accepted_share=*/1), at);
      infer::Decoder decoder = read_text(loaded, length, expand);
      add("state_bytes", static_cast<double>(decoder.state_bytes()), at);
    }
  }

  /// Of a token's forward pass, without making the model: of initial windows, if every visible key were accepted.
  void add_flops(const Evaluation& evaluation, const json& change) {
    json config = job_.recipe.model;
    config.update(change);
    for (const int64_t length : evaluation.lengths) {
      json at = change;
      at["length"] = length;
      add_exact("planned_flops_per_token", train::planned_flops_per_token(config, length) / 3, at);
    }
  }

  infer::Decoder read_text(const infer::LoadedModel& loaded, int64_t length, bool expand) const {
    infer::Decoder decoder(*loaded.model, /*sequences=*/1, {.expand_windows = expand});
    const int64_t chunk = std::clamp<int64_t>(length / 2, 1, 4096);  // the decoder reserves texts longer than a chunk
    const at::Tensor ids = at::arange(length, at::kLong).remainder(loaded.tokenizer->vocab_size()).reshape({1, length});
    decoder.read(ids, chunk, [&](const at::Tensor&, int64_t) { stop_if_asked(job_.name, signals_); });
    return decoder;
  }

  /// Seconds to read a text, and the median of the times of the tokens after it.
  void add_speed(const Evaluation& evaluation, const infer::LoadedModel& loaded, bool expand, const json& columns) {
    for (const int64_t length : evaluation.lengths) {
      json at = columns;
      at["length"] = length;
      read_text(loaded, length, expand);  // the first read also reserves memory
      const double start = now_seconds();
      infer::Decoder decoder = read_text(loaded, length, expand);
      add("read_seconds", now_seconds() - start, at);
      const at::Tensor id = at::zeros({1, 1}, at::kLong);
      std::vector<double> seconds;
      for (int64_t i = 0; i < kTimedTokens; ++i) {
        const double before = now_seconds();
        decoder.logits_after(id, 1);
        seconds.push_back(now_seconds() - before);
      }
      std::ranges::nth_element(seconds, seconds.begin() + kTimedTokens / 2);
      add("token_seconds", seconds[kTimedTokens / 2], at);
    }
  }

  void add_heads() {
    const infer::LoadedModel loaded = load(json::object());
    for (const auto& head : loaded.model->screening_heads()) {
      const json at = {{"layer", head.layer}, {"head", head.head}};
      add("window", head.window, at);
      add("acceptance_width", head.accept, at);
    }
  }

  void add_parameters(const Evaluation& evaluation) {
    const infer::LoadedModel loaded = load(json::object());
    std::vector<at::Tensor> tensors;
    for (const models::Parameter& parameter : loaded.model->parameters()) tensors.push_back(parameter.tensor.detach());
    int64_t values = 0;
    for (const auto& [name, tensor] : loaded.model->checkpoint_tensors(tensors)) {
      if (fnmatch(evaluation.name.c_str(), name.c_str(), /*flags=*/0) != 0) continue;
      const at::Tensor flat = tensor.to(at::kCPU, at::kDouble).reshape({-1}).contiguous();
      values += flat.numel();
      if (values > kMostValues) {
        fail(ExitCode::kUsage, "{}: {} names more than {} values; use a narrower pattern", job_.name, evaluation.name,
             kMostValues);
      }
      for (int64_t i = 0; i < flat.numel(); ++i) {
        add("parameter", flat.const_data_ptr<double>()[i], {{"tensor", name}, {"index", i + 1}});
      }
    }
    if (values == 0) fail(ExitCode::kUsage, "{}: no tensor of the model is called {}", job_.name, evaluation.name);
  }

  void add_function(const Evaluation& evaluation) {
    evaluate_function(
        evaluation.name, evaluation.settings,
        [&](const std::string& metric, double value, const json& columns) { add(metric, value, columns); });
  }

  const StudyRecipe& study_;
  const Job& job_;
  const Point& point_;
  const at::Device device_;
  std::FILE* messages_;
  const train::StopSignals& signals_;
  json columns_;
  Rows rows_;
};

json to_json(const Evaluation& evaluation, bool first_seed) {
  // Of one file as earlier versions described it.
  const std::string of_one_file = evaluation.files.size() == 1 ? evaluation.files.front() : "";
  json described = {{"kind", evaluation.kind},   {"lengths", evaluation.lengths},
                    {"name", evaluation.name},   {"settings", evaluation.settings},
                    {"file", of_one_file},       {"expand_windows", evaluation.expand_windows},
                    {"where", evaluation.where}, {"changes", evaluation.changes}};
  if (evaluation.kind == "task" || evaluation.kind == "recall") {
    json task = eval::to_json(eval::TaskResult{.options = evaluation.task});
    for (const char* answer : {"seconds", "cells", "by_length"}) task.erase(answer);
    described["task"] = std::move(task);
    described["needle_score"] = evaluation.task.needle_score;
    const bool grew = evaluation.task.needle_score || evaluation.kind == "recall";
    if (grew) described["metrics"] = metrics_of(evaluation);  // earlier versions had fewer
  }
  if (evaluation.kind == "relevance") described["heads"] = evaluation.heads;
  if (evaluation.kind == "relevance" || evaluation.kind == "recall") described["map"] = first_seed;
  if (evaluation.checkpoint_length > 0) described["checkpoint_length"] = evaluation.checkpoint_length;
  if (!evaluation.digest.empty()) described["digest"] = evaluation.digest;
  if (evaluation.files.size() > 1) described["files"] = evaluation.files;
  if (const eval::LossEvalOptions& loss = evaluation.loss; loss.middle || loss.points > 0) {
    described["loss"] = {{"middle", loss.middle}, {"points", loss.points}, {"smooth", loss.smooth}};
  }
  if (evaluation.kind == "lm_eval") {
    described["tasks"] = evaluation.lm_eval.tasks;
    described["limit"] = evaluation.lm_eval.limit;
  }
  return described;
}

}  // namespace

json describe(const StudyRecipe& study, const Job& job) {
  json list = json::array();
  for (const Evaluation& evaluation : study.evaluations) {
    if (matches(study.points[job.point].columns, evaluation.where))
      list.push_back(to_json(evaluation, job.seed == study.seeds.front()));
  }
  return list;
}

Rows measure(const StudyRecipe& study, const Job& job, const json& trained, at::Device device, std::FILE* messages,
             const train::StopSignals& signals) {
  Measurement measurement(study, job, device, messages, signals);
  if (job.search) {
    measurement.add_search_loss();
    return measurement.take();
  }
  if (study.model) measurement.add_sizes();
  if (study.train) measurement.add_training(trained);
  for (const Evaluation& evaluation : study.evaluations) measurement.add(evaluation);
  return measurement.take();
}

Rows diverged_rows(const StudyRecipe& study, const Job& job) {
  const train::StopSignals signals;
  Measurement measurement(study, job, at::kCPU, nullptr, signals);
  if (job.search) {
    measurement.add("search_loss", std::nan(""));
    return measurement.take();
  }
  measurement.add_sizes();
  measurement.add("diverged", 1);
  return measurement.take();
}

}  // namespace tamis::study
