#include "tamis/train/plan.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/values.h"
#include "tamis/train/options.h"

namespace tamis::cli {
namespace {

struct PlanCommand {
  train::TrainOptions options;
  RunOptions run;
  train::Network network;
  double bandwidth = 10;  // Gbit/s
  double latency = 50;    // microseconds
  bool json = false;
};

void run(const PlanCommand& command) {
  check_options(command.run);
  train::check_options(command.options);
  std::vector<std::string> overrides = command.options.overrides;
  if (command.run.threads > 0) overrides.push_back(fmt::format("train.threads={}", command.run.threads));
  const train::Recipe recipe = train::load_recipe(command.options.recipe, overrides, train::RecipeUse::kPlan);
  train::Network network = command.network;
  network.bandwidth = command.bandwidth * 1e9 / 8;
  network.latency = command.latency * 1e-6;
  const nlohmann::json plan = train::plan(recipe, start(command.run), stderr, network);
  fmt::print("{}", command.json ? to_line(plan) : train::plan_text(plan));
}

}  // namespace

void add_plan(CLI::App& app) {
  auto command = std::make_shared<PlanCommand>();
  auto* sub = app.add_subcommand("plan", "Show what a run would take: parameters, time, memory, disk; writes nothing.");
  sub->add_option("recipe", command->options.recipe, "TOML file, - reads standard input; its texts are not needed")
      ->type_name("TOML")
      ->required();
  sub->add_option("--set", command->options.overrides,
                  "Change a key of the recipe, as table.key=value; may be repeated")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  add_number(*sub, "--processes", command->network.processes, "Also show what this many processes send", whole(1));
  add_number(*sub, "--bandwidth", command->bandwidth, "With --processes: Gbit/s of each", Limits<double>{1e-6, 1e9});
  add_number(*sub, "--latency", command->latency, "With --processes: microseconds of a message",
             Limits<double>{0, 1e9});
  add_json_option(*sub, command->json);
  add_run_options(*sub, command->run);
  sub->footer(
      "tamis plan recipes/psi16.toml\n"
      "tamis plan recipes/shakespeare.toml --set train.steps=4000 --json\n"
      "tamis plan recipes/psi16.toml --processes 64 --bandwidth 100 --set train.context_parallel=8");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
