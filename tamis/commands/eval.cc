#include <fmt/format.h>

#include <filesystem>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/input.h"
#include "tamis/base/terminal.h"
#include "tamis/commands/commands.h"
#include "tamis/commands/common.h"
#include "tamis/eval/loss_eval.h"
#include "tamis/eval/task_eval.h"

namespace tamis::commands {
namespace {

/// Keeps the result as eval/<task>.json where the report looks for it, when the directory is a run's.
template <typename EvalCommand>
void keep(const EvalCommand& command, const infer::LoadedModel& loaded, nlohmann::json json) {
  json["checkpoint"] = loaded.checkpoint.string();
  if (!std::filesystem::equivalent(loaded.checkpoint, command.directory)) {
    make_directories(command.directory / "eval");
    write_file_atomic(command.directory / "eval" / (json["task"].get<std::string>() + ".json"), json.dump(2) + "\n");
  }
  if (command.json) fmt::print("{}", to_line(json));
}

}  // namespace

void run(const TaskEvalCommand& command) {
  const infer::LoadedModel loaded = infer::load(command.directory, start(command.run), model_changes(command.run));
  const auto result = eval::evaluate_task(loaded, command.options, progress_with_eta(command.options.task));
  keep(command, loaded, eval::to_json(result));
  if (!command.json) fmt::print("{}", eval::to_table(result, use_colour(stdout)));
}

void run(const LossCommand& command) {
  const std::string text = read_input(command.file);
  if (text.empty()) fail(ExitCode::kInput, "{}: is empty; expected text", input_name(command.file));
  const infer::LoadedModel loaded = infer::load(command.directory, start(command.run), model_changes(command.run));
  const auto result = eval::evaluate_loss(loaded, text, command.options, progress_with_eta("loss"));
  nlohmann::json json = eval::to_json(result);
  json["file"] = command.file.string();
  keep(command, loaded, std::move(json));
  if (!command.json) fmt::print("{}", eval::to_table(result));
}

}  // namespace tamis::commands
