#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <span>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"
#include "tamis/cli/task_options.h"
#include "tamis/cli/values.h"
#include "tamis/data/registry.h"

namespace tamis::cli {
namespace {

template <typename EvalCommand>
void add_eval_options(CLI::App& task, EvalCommand& command) {
  add_json_option(task, command.json);
  add_set_model_option(task, command.run.model_changes);
  add_run_options(task, command.run);
}

/// Settings for the example: a model with the byte tokenizer has no more than 257 ids.
std::string example_settings(const data::Settings& settings) {
  const auto vocab = settings.find("vocab");
  return vocab != settings.end() && vocab->second > 257 ? " --vocab 256" : "";
}

void add_evaluated_task(CLI::App& eval, const data::Task& task) {
  auto command = std::make_shared<commands::TaskEvalCommand>();
  eval::TaskEvalOptions& options = command->options = eval::default_options(task);
  auto* sub = eval.add_subcommand(task.name, summary_of(task));
  sub->add_option("dir", command->directory, "Checkpoint or run directory")->type_name("DIR")->required();
  add_numbers(*sub, "--lengths", options.lengths, "Tokens of the prompt, separated by commas");
  if (task.takes_depth) {
    add_numbers(*sub, "--depths", options.depths, "Places of what is hidden, 0 (first) to 1 (last)");
  }
  add_number(*sub, "--instances", options.instances, "Of each length and depth");
  add_number(*sub, "--cell-tokens", options.cell_tokens,
             "Tokens of a length and depth, about: fewer instances of long prompts; 0: no limit");
  add_number(*sub, "--seed", options.seed, "Of the instances");
  add_task_options(*sub, task, options.settings, options.haystack);
  sub->add_flag("--expand-windows,!--no-expand-windows", options.expand_windows,
                "Make windows beyond the training length infinite (SWE)")
      ->default_str("true");
  if (std::holds_alternative<data::TextTask>(task.kind)) {
    sub->add_flag("--needle-score", options.needle_score,
                  "Measure the attention on the answer too, of prompts with one; takes several times longer");
  }
  add_eval_options(*sub, *command);
  sub->footer(fmt::format("tamis eval {} runs/demo{}{} --lengths {} --instances 100", task.name, example_haystack(task),
                          example_settings(options.settings), fmt::join(std::span(options.lengths).first(3), ",")));
  sub->callback([command] { run(*command); });
}

void add_loss(CLI::App& eval) {
  auto command = std::make_shared<commands::LossCommand>();
  auto* task = eval.add_subcommand("loss", "Mean loss of a text, per token, per byte and by position.");
  task->add_option("dir", command->directory, "Checkpoint or run directory")->type_name("DIR")->required();
  task->add_option("file", command->file, "Text file; - reads standard input")->type_name("FILE")->required();
  add_number(*task, "--window", command->options.window_tokens,
             "Tokens after which the context starts anew; 0: the model's training length");
  task->add_flag("--expand-windows,!--no-expand-windows", command->options.expand_windows,
                 "Make windows beyond the training length infinite (SWE)");
  add_eval_options(*task, *command);
  task->footer("tamis eval loss runs/shakespeare book.txt --window 4096");
  task->callback([command] { run(*command); });
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* eval = app.add_subcommand("eval", "Measure a trained model.");
  eval->require_subcommand(1);
  for (const data::Task& task : data::tasks()) add_evaluated_task(*eval, task);
  add_loss(*eval);
  refuse_other_names(*eval, "task");
  eval->footer("tamis eval abc_digits runs/demo --instances 100");
}

}  // namespace tamis::cli
