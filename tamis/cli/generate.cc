#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"

namespace tamis::cli {

void add_generate(CLI::App& app) {
  auto command = std::make_shared<commands::GenerateCommand>();
  infer::GenerateOptions& options = command->options;
  auto* sub = app.add_subcommand("generate", "Continue a prompt with a trained model, token by token.");
  sub->add_option("dir", command->checkpoint, "Checkpoint or run directory")->type_name("DIR")->required();
  sub->add_option("--prompt", command->prompt, "Text to continue; - reads standard input")->required();
  sub->add_option("--max-new-tokens", options.max_new_tokens, "Stop after this many")->capture_default_str();
  sub->add_option("--temperature", options.sampling.temperature, "0 takes the likeliest")->capture_default_str();
  sub->add_option("--top-k", options.sampling.top_k, "Draw from the k likeliest; 0: all")->capture_default_str();
  sub->add_option("--top-p", options.sampling.top_p, "Draw from the fewest likeliest that reach this probability")
      ->capture_default_str();
  sub->add_option("--min-p", options.sampling.min_p, "Draw from those with this share of the likeliest's probability")
      ->capture_default_str();
  sub->add_option("--seed", options.sampling.seed, "Of the draws")->capture_default_str();
  sub->add_option("--stop", options.stop, "End before this text; may be given several times")->allow_extra_args(false);
  sub->add_flag("--expand-windows,!--no-expand-windows", options.expand_windows,
                "Make windows beyond the training length infinite (SWE)");
  add_weights_option(*sub, options.weights);
  add_json_option(*sub, command->json);
  add_set_model_option(*sub, command->run.model_changes);
  add_run_options(*sub, command->run);
  sub->footer("tamis generate runs/demo --prompt $'A=12\\nB=34\\nA=' --max-new-tokens 2");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
