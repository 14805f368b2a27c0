#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"
#include "tamis/cli/values.h"

namespace tamis::cli {

void add_shootout(CLI::App& app) {
  auto command = std::make_shared<commands::ShootoutCommand>();
  shootout::ShootoutOptions& options = command->options;
  auto* shootout = app.add_subcommand("shootout", "Train mixers of equal size on equal tokens, and compare them.");
  shootout->add_option("recipe", options.recipe, "TOML file; docs/shootout.md has its keys")
      ->type_name("TOML")
      ->required();
  shootout->add_option("--set", options.overrides, "Change a key of the recipe, as table.key=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  shootout->add_flag("--plan", options.plan, "Only say which runs there would be, and how large the mixers are");
  add_number(*shootout, "--jobs", options.jobs, "Runs at a time, each with its share of the threads");
  shootout->add_option("--only", options.only, "One job of the plan, as on one of several machines")->type_name("JOB");
  add_json_option(*shootout, options.json);
  add_run_options(*shootout, command->run);
  shootout->footer("tamis shootout recipes/shootout.toml --set 'shootout.seeds=[1, 2, 3]'");
  shootout->callback([command] { run(*command); });
}

}  // namespace tamis::cli
