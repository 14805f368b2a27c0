#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"

namespace tamis::cli {
namespace {

template <typename EvalCommand>
void add_eval_options(CLI::App& task, EvalCommand& command) {
  add_json_option(task, command.json);
  add_set_model_option(task, command.run.model_changes);
  add_run_options(task, command.run);
}

void add_abc_digits(CLI::App& eval) {
  auto command = std::make_shared<commands::AbcDigitsCommand>();
  eval::AbcDigitsEvalOptions& options = command->options;
  auto* task = eval.add_subcommand("abc_digits", "Retrieval of a number at every length and depth, exact match.");
  task->add_option("dir", command->directory, "Checkpoint or run directory")->required();
  task->add_option("--lengths", options.lengths, "Tokens of the prompt, separated by commas")
      ->delimiter(',')
      ->default_str(fmt::format("{}", fmt::join(options.lengths, ",")));
  task->add_option("--depths", options.depths, "Places of the target, 0 (first) to 1 (last)")
      ->delimiter(',')
      ->default_str(fmt::format("{}", fmt::join(options.depths, ",")));
  task->add_option("--instances", options.instances, "Of each length and depth")->capture_default_str();
  task->add_option("--seed", options.seed, "Of the instances")->capture_default_str();
  task->add_flag("--expand-windows,!--no-expand-windows", options.expand_windows,
                 "Make windows beyond the training length infinite (SWE)")
      ->default_str("true");
  add_eval_options(*task, *command);
  task->footer("Example: tamis eval abc_digits runs/demo --lengths 256,1024,4096 --instances 100");
  task->callback([command] { run(*command); });
}

void add_loss(CLI::App& eval) {
  auto command = std::make_shared<commands::LossCommand>();
  auto* task = eval.add_subcommand("loss", "Mean loss of a text, per token, per byte and by position.");
  task->add_option("dir", command->directory, "Checkpoint or run directory")->required();
  task->add_option("file", command->file, "Text file")->required();
  task->add_option("--window", command->options.window_tokens,
                   "Tokens after which the context starts anew; 0: the model's training length")
      ->capture_default_str();
  task->add_flag("--expand-windows,!--no-expand-windows", command->options.expand_windows,
                 "Make windows beyond the training length infinite (SWE)");
  add_eval_options(*task, *command);
  task->footer("Example: tamis eval loss runs/shakespeare book.txt --window 4096");
  task->callback([command] { run(*command); });
}

}  // namespace

void add_eval(CLI::App& app) {
  auto* eval = app.add_subcommand("eval", "Measure a trained model.");
  eval->require_subcommand(1);
  add_abc_digits(*eval);
  add_loss(*eval);
  refuse_other_names(*eval, "task");
  eval->footer("Example: tamis eval abc_digits runs/demo --instances 100");
}

}  // namespace tamis::cli
