#include <fmt/format.h>

#include <filesystem>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/terminal.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/eval/abc_digits_eval.h"
#include "tamis/eval/loss_eval.h"

namespace tamis::cli {
namespace {

/// What all tasks take.
struct EvalCommand {
  std::filesystem::path directory;  // checkpoint or run directory
  RunOptions run;
  bool json = false;
};

/// Keeps the result as eval/<task>.json where the report looks for it, when the directory is a run's.
void keep(const EvalCommand& command, const infer::LoadedModel& loaded, nlohmann::json json) {
  json["checkpoint"] = loaded.checkpoint.string();
  if (!std::filesystem::equivalent(loaded.checkpoint, command.directory)) {
    make_directories(command.directory / "eval");
    write_file_atomic(command.directory / "eval" / (json["task"].get<std::string>() + ".json"), json.dump(2) + "\n");
  }
  if (command.json) fmt::print("{}", to_line(json));
}

void add_eval_options(CLI::App& task, EvalCommand& command) {
  add_json_option(task, command.json);
  add_run_options(task, command.run);
}

struct AbcDigitsCommand : EvalCommand {
  eval::AbcDigitsEvalOptions options;
};

void run(const AbcDigitsCommand& command) {
  const infer::LoadedModel loaded = infer::load(command.directory, start(command.run));
  const auto result = eval::evaluate_abc_digits(loaded, command.options, progress_with_eta("abc_digits"));
  keep(command, loaded, eval::to_json(result));
  if (!command.json) fmt::print("{}", eval::to_table(result, use_colour(stdout)));
}

void add_abc_digits(CLI::App& eval) {
  auto command = std::make_shared<AbcDigitsCommand>();
  eval::AbcDigitsEvalOptions& options = command->options;
  auto* task = eval.add_subcommand("abc_digits", "Retrieval of a number at every length and depth, exact match.");
  task->add_option("dir", command->directory, "Checkpoint or run directory")->required();
  task->add_option("--lengths", options.lengths, "Tokens of the prompt, separated by commas")
      ->delimiter(',')
      ->capture_default_str();
  task->add_option("--depths", options.depths, "Places of the target, 0 (first) to 1 (last)")
      ->delimiter(',')
      ->capture_default_str();
  task->add_option("--instances", options.instances, "Of each length and depth")->capture_default_str();
  task->add_option("--seed", options.seed, "Of the instances")->capture_default_str();
  task->add_flag("--expand-windows,!--no-expand-windows", options.expand_windows,
                 "Make windows beyond the training length infinite (SWE)")
      ->default_str("true");
  add_eval_options(*task, *command);
  task->footer("Example: tamis eval abc_digits runs/demo --lengths 256,1024,4096 --instances 100");
  task->callback([command] { run(*command); });
}

struct LossCommand : EvalCommand {
  std::filesystem::path file;
  eval::LossEvalOptions options;
};

void run(const LossCommand& command) {
  const std::string text = read_file(command.file);
  if (text.empty()) fail(ExitCode::kInput, "{}: is empty; expected text", command.file.string());
  const infer::LoadedModel loaded = infer::load(command.directory, start(command.run));
  const auto result = eval::evaluate_loss(loaded, text, command.options, progress_with_eta("loss"));
  nlohmann::json json = eval::to_json(result);
  json["file"] = command.file.string();
  keep(command, loaded, std::move(json));
  if (!command.json) fmt::print("{}", eval::to_table(result));
}

void add_loss(CLI::App& eval) {
  auto command = std::make_shared<LossCommand>();
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
