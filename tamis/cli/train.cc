#include "tamis/train/train.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/base/output_file.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/values.h"
#include "tamis/train/replay.h"

namespace tamis::cli {
namespace {

struct TrainCommand {
  train::TrainOptions options;
  int64_t replay = 0;  // the step to compute once more; 0: train
  ProcessOptions processes;
  RunOptions run;
  bool json = false;
};

/// One line for the result of train::replay.
std::string replayed(const nlohmann::json& result) {
  if (!result["finite"]) return result["error"].get<std::string>() + "\n";
  std::string text = fmt::format("step {}: loss {:.6f}, gradient norm {:.6g}\n", result["step"].get<int64_t>(),
                                 result["loss"].get<double>(), result["grad_norm"].get<double>());
  for (const auto& [group, norm] : result["grad_norms"].items()) {
    text += fmt::format("  {:<28} {:.6g}\n", group, norm.get<double>());
  }
  return text;
}

void run(const TrainCommand& command) {
  check_options(command.run);
  train::TrainOptions options = command.options;
  train::check_options(options);
  if (command.replay > 0 && (options.fresh || !options.trace.empty())) {
    fail(ExitCode::kUsage, "--replay computes a single step and changes nothing in the run; leave out {}",
         options.fresh ? "--fresh" : "--trace");
  }
  if (command.run.threads > 0) options.overrides.push_back(fmt::format("train.threads={}", command.run.threads));
  if (command.replay > 0) {
    const train::Recipe recipe = train::load_recipe(options.recipe, options.overrides);
    const nlohmann::json result = train::replay(recipe, command.replay, start(command.run), stderr);
    fmt::print("{}", command.json ? to_line(result) : replayed(result));
    return;
  }
  auto processes = meet(command.processes);
  if (!options.trace.empty()) check_output_file(options.trace);
  const nlohmann::json summary = train::train(options, start(command.run), stderr, std::move(processes));
  if (summary.is_null()) return;  // not the first of several processes
  print_message(stderr, fmt::format("checkpoint: {}\nnext:\n", one_line(summary["checkpoint"].get<std::string>())));
  for (const auto& line : summary["next"]) {
    print_message(stderr, fmt::format("  {}\n", one_line(line.get<std::string>())));
  }
  if (command.json) fmt::print("{}", to_line(summary));
}

}  // namespace

void add_train(CLI::App& app) {
  auto command = std::make_shared<TrainCommand>();
  train::TrainOptions& options = command->options;
  auto* sub = app.add_subcommand("train", "Train a model from a recipe, or resume a run that was stopped.");
  sub->add_option("recipe", options.recipe, "TOML file, - reads standard input; docs/training.md has its keys")
      ->type_name("TOML")
      ->required();
  sub->add_option("--set", options.overrides, "Change a key of the recipe, as table.key=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  sub->add_flag("--fresh", options.fresh, "Start a new run; an existing one is kept under another name");
  sub->add_option("--trace", options.trace,
                  "Write a trace of some steps here, for chrome://tracing and ui.perfetto.dev")
      ->type_name("FILE");
  add_number(*sub, "--trace-steps", options.trace_steps, "Steps of --trace, after the first three", whole(1));
  add_number(*sub, "--replay", command->replay,
             "Compute this step of the run once more and show its loss and gradient norms, or the first tensor that "
             "is not finite",
             whole(1))
      ->default_str("");
  add_process_options(*sub, command->processes);
  add_json_option(*sub, command->json);
  add_run_options(*sub, command->run);
  sub->footer(
      "tamis train recipes/demo.toml --set train.steps=500 --set run.dir=runs/short\n"
      "tamis train recipes/demo.toml --trace trace.json\n"
      "torchrun --nproc-per-node 4 --no-python tamis train recipes/demo.toml");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
