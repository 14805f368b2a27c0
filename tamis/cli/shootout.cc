#include "tamis/shootout/shootout.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/values.h"

namespace tamis::cli {
namespace {

struct ShootoutCommand {
  shootout::ShootoutOptions options;
  RunOptions run;
};

void run(const ShootoutCommand& command) {
  check_options(command.run);
  shootout::check_options(command.options);
  shootout::ShootoutOptions options = command.options;
  if (command.run.threads > 0) options.overrides.push_back(fmt::format("train.threads={}", command.run.threads));
  fmt::print("{}", shootout::run_shootout(options, start(command.run), stderr));
}

}  // namespace

void add_shootout(CLI::App& app) {
  auto command = std::make_shared<ShootoutCommand>();
  shootout::ShootoutOptions& options = command->options;
  auto* sub = app.add_subcommand("shootout", "Train mixers of equal size on equal tokens, and compare them.");
  sub->add_option("recipe", options.recipe, "TOML file; docs/shootout.md has its keys")->type_name("TOML")->required();
  sub->add_option("--set", options.overrides, "Change a key of the recipe, as table.key=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  sub->add_flag("--plan", options.plan, "Only say which runs there would be, and how large the mixers are");
  add_number(*sub, "--jobs", options.jobs, "Runs at a time, each with its share of the threads");
  sub->add_option("--only", options.only, "One job of the plan, as on one of several machines")->type_name("JOB");
  add_json_option(*sub, options.json);
  add_run_options(*sub, command->run);
  sub->footer("tamis shootout recipes/shootout.toml --set 'shootout.seeds=[1, 2, 3]'");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
