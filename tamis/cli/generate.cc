#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"
#include "tamis/cli/values.h"

namespace tamis::cli {

void add_generate(CLI::App& app) {
  auto command = std::make_shared<commands::GenerateCommand>();
  infer::GenerateOptions& options = command->options;
  auto* sub = app.add_subcommand("generate", "Continue a prompt with a trained model, token by token.");
  sub->add_option("dir", command->checkpoint, "Checkpoint or run directory")->type_name("DIR")->required();
  sub->add_option("--prompt", command->prompt, "Text to continue; - reads standard input")->required();
  infer::SamplingOptions& sampling = options.sampling;
  sampling.temperature = 0.8;  // people want samples; libraries, tasks and recipes are greedy by default
  add_number(*sub, "--max-new-tokens", options.max_new_tokens, "Stop after this many");
  add_number(*sub, "--temperature", sampling.temperature, "How freely to draw; 0 takes the likeliest token");
  add_number(*sub, "--top-k", sampling.top_k, "Draw from the k likeliest; 0: all");
  add_number(*sub, "--top-p", sampling.top_p, "Draw from the fewest likeliest that reach this probability");
  add_number(*sub, "--min-p", sampling.min_p, "Draw from those with this share of the likeliest's probability");
  add_number(*sub, "--seed", sampling.seed, "Of the draws");
  sub->add_option("--stop", options.stop, "End before this text; may be given several times")->allow_extra_args(false);
  sub->add_flag("--expand-windows,!--no-expand-windows", options.expand_windows,
                "Make windows beyond the training length infinite (SWE)");
  add_weights_option(*sub, options.weights);
  add_json_option(*sub, command->json);
  add_set_model_option(*sub, command->run.model_changes);
  add_run_options(*sub, command->run);
  sub->footer("tamis generate runs/demo --prompt $'A=12\\nB=34\\nA=' --max-new-tokens 2 --temperature 0");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
