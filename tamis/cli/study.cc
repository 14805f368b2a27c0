#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/study_options.h"

namespace tamis::cli {
namespace {

struct StudyCommand {
  study::StudyOptions options;
  RunOptions run;
};

}  // namespace

void add_study(CLI::App& app) {
  auto command = std::make_shared<StudyCommand>();
  study::StudyOptions& options = command->options;
  auto* sub = app.add_subcommand("study", "Train and measure variants, draw figures, and judge claims.");
  sub->add_option("recipe", options.recipe, "TOML file; docs/studies.md has its keys")->type_name("TOML")->required();
  sub->add_flag("--worker", options.worker)->group("");
  add_study_options(*sub, options, command->run);
  sub->footer(
      "tamis study recipes/studies/all-mixed.toml --jobs 2\n"
      "tamis study recipes/studies/all-mixed.toml --set 'study.seeds=[1, 2, 3, 4, 5, 6]' --plan");
  sub->callback([command] { run_study(command->options, command->run); });
}

}  // namespace tamis::cli
