#pragma once

#include <string>
#include <vector>

#include "tamis/data/registry.h"
#include "tamis/train/recipe.h"
#include "tamis/train/table_reader.h"

namespace tamis::train {

inline constexpr double kMostSteps = 1e12;  // products of sizes then fit into 64 bits
inline constexpr double kMostTokens = 1 << 30;

/// The possible values of `kind` in [data.sources.NAME].
inline std::vector<std::string> source_kinds() {
  std::vector<std::string> kinds = {"text", "corpus", "prompts"};
  for (const data::Task& task : data::tasks()) kinds.push_back(task.name);
  return kinds;
}

template <typename Visitor>
void visit_fields(data::AbcDigitsOptions& abc_digits, Visitor&& visit) {
  const Allowed digits{.least = 1, .most = 18}, letters{.least = 1, .most = data::kAbcDigitsLetters};
  const Allowed share{.least = 0.0, .most = 1.0};
  visit("digits_min", abc_digits.digits_min, digits);
  visit("digits_max", abc_digits.digits_max, digits);
  visit("letters_min", abc_digits.letters_min, letters);
  visit("letters_max", abc_digits.letters_max, letters);
  visit("few_letters_share", abc_digits.few_letters_share, share);
  visit("few_letters_max", abc_digits.few_letters_max, letters);
  visit("paper_form_share", abc_digits.paper_form_share, share);
  visit("skewed_share", abc_digits.skewed_share, share);
  visit("answers_only", abc_digits.answers_only, Allowed{});
  visit("first_digit_share", abc_digits.first_digit_share, share);
}

/// The keys of the task `task.task`, which must exist.
template <typename Visitor>
void visit_fields(data::TaskSourceOptions& task, Visitor&& visit) {
  for (const data::Setting& setting : data::find_task(task.task).settings) {
    int64_t& value = task.settings.try_emplace(setting.name, setting.value).first->second;
    visit(setting.name, value,
          Allowed{.least = static_cast<double>(setting.least), .most = static_cast<double>(setting.most)});
  }
  visit("length", task.length, Allowed{.least = 0, .most = kMostTokens});
  visit("length_min", task.length_min, Allowed{.least = 0, .most = kMostTokens});
  visit("answers_only", task.answers_only, Allowed{});
  visit("haystack", task.haystack, Allowed{});
}

/// Calls `visit(key, value, allowed)` for each key of a table. Reading and writing both use this single list of keys.
template <typename Visitor>
void visit_fields(SourceRecipe& source, Visitor&& visit) {
  visit("kind", source.kind, Allowed{.choices = source_kinds()});
  visit("weight", source.weight, Allowed{.least = 0.0, .most = 1e6});
  if (source.kind == "text" || source.kind == "corpus") {
    const bool text = source.kind == "text";
    visit(text ? "files" : "path", text ? source.files : source.path, Allowed{});
    if (source.sampling.empty()) source.sampling = text ? "random" : "sequential";
    visit("sampling", source.sampling, Allowed{.choices = {"random", "sequential"}});
    visit("documents", source.documents, Allowed{});
    visit("validation_fraction", source.validation_fraction, Allowed{.least = 0.0, .most = 0.9});
    visit(text ? "validation_files" : "validation_path", text ? source.validation_files : source.validation_path,
          Allowed{});
  } else if (source.kind == "prompts") {
    visit("files", source.files, Allowed{});
    visit("prompt", source.templates.prompt, Allowed{});
    visit("answer", source.templates.answer, Allowed{});
    visit("validation_fraction", source.validation_fraction, Allowed{.least = 0.0, .most = 0.9});
    visit("validation_files", source.validation_files, Allowed{});
  } else if (source.kind == "abc_digits") {
    visit_fields(source.abc_digits, visit);
  } else {
    source.task.task = source.kind;
    visit_fields(source.task, visit);
  }
}

template <typename Visitor>
void visit_fields(TrainRecipe& train, Visitor&& visit) {
  visit("steps", train.steps, Allowed{.least = 1, .most = kMostSteps});
  visit("epochs", train.epochs, Allowed{.least = 0.0, .most = 1e6});
  visit("length", train.length, Allowed{.least = 1, .most = kMostTokens});
  visit("batch_size", train.batch_size, Allowed{.least = 0, .most = kMostTokens});
  visit("batch_tokens", train.batch_tokens, Allowed{.least = 1, .most = kMostTokens});
  visit("accumulation", train.accumulation, Allowed{.least = 1, .most = kMostTokens});
  visit("lr", train.lr, Allowed{.least = 0.0});
  visit("betas", train.betas, Allowed{.least = 0.0, .most = 1.0 - 1e-12});
  visit("eps", train.eps, Allowed{.least = 0.0});
  visit("weight_decay", train.weight_decay, Allowed{.least = 0.0});
  visit("warmup_steps", train.warmup_steps, Allowed{.least = 0, .most = kMostSteps});
  visit("schedule", train.schedule, Allowed{.choices = {"constant", "cosine"}});
  visit("min_lr", train.min_lr, Allowed{.least = 0.0});
  visit("decay_share", train.decay_share, Allowed{.least = 0.0, .most = 1.0});
  visit("unit_deviation", train.unit_deviation, Allowed{.least = 0.0, .most = 1e6});
  visit("acceptance_margin", train.acceptance_margin, Allowed{.least = 0.0, .most = 1e6});
  visit("dropout", train.dropout, Allowed{.least = 0.0, .most = 0.99});
  visit("clip", train.clip, Allowed{.least = 0.0});
  visit("precision", train.precision, Allowed{.choices = {"auto", "float32", "bfloat16", "float16"}});
  visit("context_parallel", train.context_parallel, Allowed{.least = 1, .most = 1 << 20});
  visit("shard", train.shard, Allowed{.choices = {"optimizer", "parameters"}});
  visit("reduction", train.reduction, Allowed{.choices = {"fast", "ordered"}});
  visit("reduction_dtype", train.reduction_dtype, Allowed{.choices = {"float32", "bfloat16"}});
  visit("recompute", train.recompute, Allowed{.least = 0.0, .most = 1.0});
  visit("window_short", train.window_short, Allowed{.least = 0, .most = kMostTokens});
  visit("window_short_share", train.window_short_share, Allowed{.least = 0.0, .most = 1.0});
  visit("window_long_last", train.window_long_last, Allowed{.least = 0.0, .most = 1.0});
  visit("start_from", train.start_from, Allowed{});
  visit("start_state", train.start_state, Allowed{.choices = {"weights", "all"}});
  visit("non_finite", train.non_finite, Allowed{.choices = {"recover", "stop"}});
  visit("seed", train.seed, Allowed{.least = 0});
  visit("threads", train.threads, Allowed{.least = 0, .most = 4096});
  visit("save_every", train.save_every, Allowed{.least = 1, .most = kMostSteps});
  visit("keep", train.keep, Allowed{.least = 0, .most = kMostSteps});
  visit("keep_every", train.keep_every, Allowed{.least = 0, .most = kMostSteps});
  visit("log_every", train.log_every, Allowed{.least = 1, .most = kMostSteps});
  visit("tensorboard", train.tensorboard, Allowed{});
  visit("validate_every", train.validate_every, Allowed{.least = 0, .most = kMostSteps});
  visit("validate_tokens", train.validate_tokens, Allowed{.least = 0, .most = kMostTokens});
  visit("sample_every", train.sample_every, Allowed{.least = 0, .most = kMostSteps});
  visit("sample_prompt", train.sample_prompt, Allowed{});
  visit("sample_tokens", train.sample_tokens, Allowed{.least = 1, .most = kMostTokens});
  visit("sample_temperature", train.sample_temperature, Allowed{.least = 0.0});
}

template <typename Visitor>
void visit_fields(RunRecipe& run, Visitor&& visit) {
  visit("dir", run.dir, Allowed{});
  visit("assumptions", run.assumptions, Allowed{});
}

}  // namespace tamis::train
