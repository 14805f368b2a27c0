#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"

namespace tamis::cli {

void add_train(CLI::App& app) {
  auto command = std::make_shared<commands::TrainCommand>();
  train::TrainOptions& options = command->options;
  auto* train = app.add_subcommand("train", "Train a model as a recipe says, or go on with a run that was stopped.");
  train->add_option("recipe", options.recipe, "TOML file; docs/training.md has its keys")
      ->type_name("TOML")
      ->required();
  train->add_option("--set", options.overrides, "Change a key of the recipe, as table.key=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  train->add_flag("--fresh", options.fresh, "Begin anew; an existing run is kept under another name");
  add_json_option(*train, command->json);
  add_run_options(*train, command->run);
  train->footer("tamis train recipes/demo.toml --set train.steps=500 --set run.dir=runs/short");
  train->callback([command] { run(*command); });
}

}  // namespace tamis::cli
