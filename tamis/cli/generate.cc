#include "tamis/infer/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "tamis/base/input.h"
#include "tamis/base/message.h"
#include "tamis/base/terminal.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/values.h"

namespace tamis::cli {
namespace {

struct GenerateCommand {
  std::filesystem::path checkpoint;  // or run directory
  std::string prompt;                // "-" reads standard input
  infer::GenerateOptions options;
  RunOptions run;
  bool json = false;
};

std::string speed(const infer::Generation& made) {
  const auto steps = static_cast<double>(made.tokens.size()) - 1;  // the first token comes with the prompt
  return fmt::format("{} tokens read in {}, {} drawn at {:.0f} tokens/s, state {}", made.prompt_tokens,
                     format_duration(made.prefill_seconds), made.tokens.size(),
                     steps / std::max(made.decode_seconds, 1e-9), format_bytes(static_cast<double>(made.state_bytes)));
}

nlohmann::json json_of(const infer::Generation& made) {
  return {{"text", made.text},
          {"tokens", made.tokens},
          {"end", infer::name_of(made.end)},
          {"prompt_tokens", made.prompt_tokens},
          {"state_bytes", made.state_bytes},
          {"prefill_seconds", made.prefill_seconds},
          {"decode_seconds", made.decode_seconds}};
}

void run(const GenerateCommand& command) {
  check_options(command.run);
  infer::check_options(command.options);
  infer::check_prompt(command.prompt);
  const at::Device device = start(command.run);
  const std::string prompt = command.prompt == "-" ? read_input("-") : command.prompt;
  const infer::LoadedModel loaded = infer::load(command.checkpoint, device, model_changes(command.run));
  if (command.json) {
    fmt::print("{}", to_line(json_of(infer::generate(loaded, prompt, command.options))));
    return;
  }
  const auto made = infer::generate(loaded, prompt, command.options, [](std::string_view text) {
    fmt::print("{}", text);
    flush_output();
  });
  fmt::print("\n");
  flush_output();
  print_message(stderr, speed(made) + "\n");
}

}  // namespace

void add_generate(CLI::App& app) {
  auto command = std::make_shared<GenerateCommand>();
  infer::GenerateOptions& options = command->options;
  auto* sub = app.add_subcommand("generate", "Continue a prompt with a trained model, token by token.");
  sub->add_option("dir", command->checkpoint, "Checkpoint or run directory")->type_name("DIR")->required();
  sub->add_option("--prompt", command->prompt, "Text to continue; - reads standard input")->required();
  infer::SamplingOptions& sampling = options.sampling;
  sampling.temperature = 0.8;  // for samples of a text; libraries, tasks and recipes are greedy by default
  add_number(*sub, "--max-new-tokens", options.max_new_tokens, "Maximum number of new tokens");
  add_number(*sub, "--temperature", sampling.temperature, "Sampling temperature; 0: the likeliest token");
  add_number(*sub, "--top-k", sampling.top_k, "Sample from the k likeliest tokens; 0: all");
  add_number(*sub, "--top-p", sampling.top_p,
             "Sample from the smallest set of likeliest tokens that reaches this probability");
  add_number(*sub, "--min-p", sampling.min_p,
             "Sample from tokens with at least this fraction of the likeliest's probability");
  add_number(*sub, "--seed", sampling.seed, "Seed of the samples");
  sub->add_option("--stop", options.stop, "End before this text; may be repeated")->allow_extra_args(false);
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
