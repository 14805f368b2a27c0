#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"

namespace tamis::cli {

void add_score(CLI::App& app) {
  auto command = std::make_shared<commands::ScoreCommand>();
  auto* sub = app.add_subcommand("score", "Log-probability (natural) of every token of a text; nothing is prepended.");
  sub->add_option("dir", command->checkpoint, "Checkpoint or run directory")->type_name("DIR")->required();
  sub->add_option("file", command->text, "Text file; - reads standard input")->type_name("FILE");
  sub->add_option("--ids", command->ids,
                  "Instead of a text: a file with a JSON list of token ids; - reads standard input")
      ->type_name("FILE");
  sub->add_flag("--expand-windows,!--no-expand-windows", command->options.expand_windows,
                "Make windows beyond the training length infinite (SWE)");
  add_weights_option(*sub, command->options.weights);
  add_json_option(*sub, command->json);
  add_set_model_option(*sub, command->run.model_changes);
  add_run_options(*sub, command->run);
  sub->footer("tamis score runs/demo README.md --json");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
