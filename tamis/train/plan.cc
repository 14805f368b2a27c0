#include "tamis/train/plan.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "tamis/base/cores.h"
#include "tamis/base/memory.h"
#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/base/terminal.h"
#include "tamis/models/model.h"
#include "tamis/train/data_set.h"
#include "tamis/train/machine.h"
#include "tamis/train/memory_estimate.h"
#include "tamis/train/step_measurement.h"
#include "tamis/train/step_statistics.h"
#include "tamis/train/trainer.h"

namespace tamis::train {
namespace {

using nlohmann::json;

constexpr double kMeasureSeconds = 20;
constexpr double kLongestMicroBatch = 30;  // seconds, as estimated
/// What training reaches of the matmul peak; only for models that are not measured.
constexpr double kShareOfPeak = 0.6;

/// FLOPs of a token's training.
double training_flops(const models::Model& model, int64_t length) {
  return 3.0 * model.flops_per_token(length).executed(/*accepted_share=*/1);
}

/// The number of times that something happens every `every` steps and at the last step.
int64_t times(int64_t steps, int64_t every) {
  return every == 0 ? 1 : (steps + every - 1) / every;
}

/// Tokens of one validation. A corpus is taken to have documents held out, because it is not opened.
int64_t tokens_of_validation(const Recipe& recipe) {
  const TrainRecipe& train = recipe.train;
  if (train.validate_tokens == 0) return 0;
  const int64_t examples = std::max<int64_t>(train.validate_tokens / train.length, 1);
  int64_t tokens = 0;
  for (const SourceRecipe& source : recipe.data.sources) {
    const bool held_out = source.is_task() || source.kind == "corpus" || source.validation_fraction > 0 ||
                          !source.validation_files.empty();
    if (held_out) tokens += examples * train.length;
  }
  return tokens;
}

/// Bytes of checkpoints and logs. `model` may be null: then the log is counted without its records of windows.
void add_disk(json& result, const Recipe& recipe, const models::Model* model, int64_t parameters) {
  constexpr int64_t kTensorHeader = 110, kTextFiles = 8 << 10;  // names, shapes, offsets; config, tokenizer, state
  constexpr int64_t kScalarEvent = 32, kScalars = 10;           // in an event file, where a record is one event
  const TrainRecipe& train = recipe.train;
  const int64_t tensors = 3 * 8 * recipe.model.at("num_hidden_layers").get<int64_t>();
  const int64_t checkpoint = 3 * 4 * parameters + tensors * kTensorHeader + kTextFiles;
  const int64_t saved = times(train.steps, train.save_every);
  int64_t kept = train.keep == 0 ? saved : std::min(saved, train.keep);
  if (train.keep_every > 0) kept += (saved - kept) * train.save_every / std::lcm(train.save_every, train.keep_every);

  int64_t record = 0;
  if (model != nullptr) {
    StepStatistics statistics(train, *model, {}, /*matmul_flops=*/1e12);
    GradientNorms norms = gradient_norms(model->parameters());
    for (auto& [group, norm] : norms.groups) norm = 1.0 / 3;
    norms.all = 1.0 / 3;
    record += train.tensorboard ? kScalarEvent * (kScalars + static_cast<int64_t>(norms.groups.size())) : 0;
    statistics.add(
        {.loss = 1.0 / 3, .gradient_norms = norms, .lr = 1.0 / 3, .tokens = train.batch_tokens, .window = {}}, 1.0 / 3);
    const auto line = [](const json& written) { return static_cast<int64_t>(written.dump().size()) + 32; };  // and time
    record += line(statistics.take_record({.step = train.steps, .tokens = train.steps, .seconds = 1.0 / 3}));
    if (const json heads = head_record(*model, train.steps); !heads.is_null()) record += line(heads);
  }
  result["checkpoint_bytes"] = checkpoint;
  result["checkpoints"] = kept;
  result["disk_bytes"] = kept * checkpoint + record * times(train.steps, train.log_every);
}

}  // namespace

double planned_flops_per_token(const json& config, int64_t length) {
  // FLOPs grow linearly with the number of layers.
  const std::string pattern = config.value("pattern", std::string("s"));
  const auto with_layers = [&](int64_t layers) {
    json small = config;
    small["num_hidden_layers"] = layers;
    return training_flops(*models::make_model(small, {.seed = std::nullopt, .device = at::kMeta}), length);
  };
  const auto layers = config.at("num_hidden_layers").get<int64_t>();
  const auto period = static_cast<int64_t>(pattern.size());
  if (layers <= 2 * period) return with_layers(layers);
  const double one = with_layers(period), two = with_layers(2 * period);
  return one + (two - one) * static_cast<double>(layers - period) / static_cast<double>(period);
}

json plan(Recipe recipe, at::Device device, std::FILE* messages, const Network& network) {
  if (network.processes > 1) check_processes(recipe.train, network.processes);
  ProgressLine progress(messages);
  for (const std::string& note : recipe.notes) print_message(messages, one_line(note) + "\n");
  TrainRecipe& train = recipe.train;
  at::set_num_threads(static_cast<int>(train.threads > 0 ? train.threads : usable_cores()));
  if (train.epochs > 0) {  // only the data know the number of steps
    train.steps = steps_of_epochs(open_data(recipe, *open_tokenizer(recipe.data.tokenizer)), train);
  }
  if (train.precision == "auto") train.precision = fastest_precision(device);
  const models::ParameterCount parameters = models::count_parameters(recipe.model);
  const json memory = estimate_memory(recipe, device);
  const double peak = measure_matmul_flops(compute_dtype(train.precision), device);
  const int64_t available = available_memory_bytes(), program = peak_resident_bytes();

  std::unique_ptr<models::Model> model;
  const bool fits = memory["total"].get<double>() < 0.9 * static_cast<double>(available);
  if (fits) model = models::make_model(recipe.model, {.seed = train.seed, .device = at::kCPU});
  const double flops =
      fits ? training_flops(*model, train.length) : planned_flops_per_token(recipe.model, train.length);
  const double estimated_speed = kShareOfPeak * peak / flops;

  std::optional<MeasuredSteps> measured;
  if (fits && device.is_cpu() &&
      static_cast<double>(train.batch_tokens / train.accumulation) / estimated_speed < kLongestMicroBatch) {
    Recipe alone = recipe;  // a single process computes whole sequences
    alone.train.context_parallel = 1;
    measured = measure_steps(alone, *model, kMeasureSeconds, [&](const std::string& text) { progress.update(text); });
  }
  progress.clear();

  const auto steps = static_cast<double>(train.steps), tokens = static_cast<double>(train.batch_tokens);
  const double step_seconds = measured ? measured->step_seconds : tokens / estimated_speed;
  const double validation_speed = measured ? measured->validation_seconds_per_token : 1 / (3 * estimated_speed);
  const double validated = static_cast<double>(tokens_of_validation(recipe) * times(train.steps, train.validate_every));
  const bool saves_meanwhile = train.save_every < train.steps;  // in the background, from a copy
  const int64_t copies = saves_meanwhile ? 3 * 4 * parameters.total : 0;
  json result = {{"model", recipe.model.at("model_type")},
                 {"parameters", parameters.total},
                 {"parameters_without_embedding", parameters.without_embedding},
                 {"flops_per_token", flops},
                 {"steps", train.steps},
                 {"tokens", train.steps * train.batch_tokens},
                 {"precision", train.precision},
                 {"threads", at::get_num_threads()},
                 {"measured", measured.has_value()},
                 {"tokens_per_second", tokens / step_seconds},
                 {"seconds_in_steps", steps * step_seconds},
                 {"seconds", steps * step_seconds + validated * validation_speed},
                 {"memory_bytes", measured ? measured->peak_bytes : program + memory["total"].get<int64_t>() + copies},
                 {"available_memory_bytes", available}};
  add_disk(result, recipe, model.get(), parameters.total);
  if (network.processes > 1) {
    json& communication = result["communication"] = plan_communication(recipe, model.get(), network);
    communication["step_seconds"] =
        step_seconds / static_cast<double>(network.processes) + communication["seconds"].get<double>();
  }
  return result;
}

std::string plan_text(const json& plan) {
  std::string text;
  const auto row = [&](const char* name, const std::string& value) { text += fmt::format("{:<20}{}\n", name, value); };
  const auto number = [&](const char* key) { return plan.at(key).get<double>(); };
  row("model", plan.at("model"));
  row("parameters", fmt::format("{} ({} without the embedding)", plan.at("parameters").get<int64_t>(),
                                plan.at("parameters_without_embedding").get<int64_t>()));
  row("training", fmt::format("{} steps, {} tokens, {} FLOP per token", plan.at("steps").get<int64_t>(),
                              format_count(number("tokens")), format_count(number("flops_per_token"))));
  row("speed", fmt::format("{} tokens per second, {}, {} ({})", format_count(number("tokens_per_second")),
                           plan.at("precision").get<std::string>(), counted(plan.at("threads"), "thread"),
                           plan.at("measured").get<bool>() ? "measured on random tokens"
                                                           : "estimated from the matmul peak, not measured"));
  const char* const alone = plan.contains("communication") ? ", with a single process" : "";
  row("time", fmt::format("{}, {} of it in steps{}", format_duration(number("seconds")),
                          format_duration(number("seconds_in_steps")), alone));
  row("memory", fmt::format("{} ({} available){}", format_bytes(number("memory_bytes")),
                            format_bytes(number("available_memory_bytes")), alone));
  row("disk", fmt::format("{}: {} checkpoints of {}, logs", format_bytes(number("disk_bytes")),
                          plan.at("checkpoints").get<int64_t>(), format_bytes(number("checkpoint_bytes"))));
  if (!plan.contains("communication")) return text;
  const json& sent = plan.at("communication");
  const auto bytes = [&](const json& value) { return format_bytes(value.get<double>()); };
  const auto sharing = sent.at("context_parallel").get<int64_t>();
  row("processes", fmt::format("{}{}", sent.at("processes").get<int64_t>(),
                               sharing > 1 ? fmt::format(", of which {} share each sequence", sharing) : ""));
  row("sent in a step",
      fmt::format("{} gradients and {} parameters by each process, {} by all together",
                  bytes(sent.at("gradient_bytes")), bytes(sent.at("parameter_bytes")), bytes(sent.at("sent_bytes"))));
  const json& layers = sent.at("context_bytes");
  for (size_t first = 0, last = 0; first < layers.size() && sharing > 1; first = last + 1) {  // layers that send alike
    for (last = first; last + 1 < layers.size() && layers[last + 1] == layers[first];) ++last;
    const std::string which = last > first ? fmt::format("layers {} to {}: {} each", first, last, bytes(layers[first]))
                                           : fmt::format("layer {}: {}", first, bytes(layers[first]));
    row(first == 0 ? "for sequences" : "", which);
  }
  const double step = sent.at("step_seconds").get<double>();
  row("time of a step",
      fmt::format("{:.3g} s, of which communication {:.3g} s", step, sent.at("seconds").get<double>()));
  row("time of all steps", format_duration(step * number("steps")));
  return text;
}

}  // namespace tamis::train
