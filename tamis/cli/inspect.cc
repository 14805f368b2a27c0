#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"

namespace tamis::cli {

void add_inspect(CLI::App& app) {
  auto command = std::make_shared<commands::InspectCommand>();
  report::InspectOptions& options = command->options;
  auto* sub = app.add_subcommand("inspect", "Count parameters; show windows, acceptance widths, relevance maps.");
  sub->add_option("checkpoint", options.checkpoint, "Checkpoint or run directory");
  sub->add_option("--psi", command->psi, "Without a checkpoint: count the parameters of this Psi")
      ->check(CLI::PositiveNumber);
  sub->add_option("--vocab", command->vocab_size, "Vocabulary for --psi")->capture_default_str();
  sub->add_option("--text", command->text_file, "Text whose relevance maps to show; - reads standard input")
      ->type_name("FILE");
  sub->add_option("--html", command->html, "Write a page with the maps of all tiles here")->type_name("FILE");
  sub->add_option("--tokens", options.most_tokens, "Most tokens of the text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  sub->add_flag("--expand-windows,!--no-expand-windows", options.expand_windows,
                "Make windows beyond the training length infinite (SWE)");
  add_set_model_option(*sub, options.model_changes);
  add_json_option(*sub, command->json);
  add_run_options(*sub, command->run);
  sub->footer(
      "tamis inspect runs/demo --text letter.txt --html maps.html\n"
      "tamis inspect --psi 16 --vocab 50257 --json");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
