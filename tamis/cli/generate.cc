#include "tamis/infer/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include "tamis/base/terminal.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/input.h"

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

nlohmann::json to_json(const infer::Generation& made) {
  return {{"text", made.text},
          {"tokens", made.tokens},
          {"end", infer::name_of(made.end)},
          {"prompt_tokens", made.prompt_tokens},
          {"state_bytes", made.state_bytes},
          {"prefill_seconds", made.prefill_seconds},
          {"decode_seconds", made.decode_seconds}};
}

void run(const GenerateCommand& command) {
  const at::Device device = start(command.run);
  infer::check_sampling(command.options.sampling);
  const std::string prompt = command.prompt == "-" ? read_text("-") : command.prompt;
  const infer::LoadedModel loaded = infer::load(command.checkpoint, device);
  if (command.json) {
    fmt::print("{}", to_line(to_json(infer::generate(loaded, prompt, command.options))));
    return;
  }
  const auto made = infer::generate(loaded, prompt, command.options, [](std::string_view text) {
    fmt::print("{}", text);
    std::fflush(stdout);
  });
  fmt::print("\n");
  std::fflush(stdout);
  fmt::print(stderr, "{}\n", speed(made));
}

}  // namespace

void add_generate(CLI::App& app) {
  auto command = std::make_shared<GenerateCommand>();
  infer::GenerateOptions& options = command->options;
  auto* sub = app.add_subcommand("generate", "Continue a prompt with a trained model, token by token.");
  sub->add_option("dir", command->checkpoint, "Checkpoint or run directory")->required();
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
  add_run_options(*sub, command->run);
  sub->footer("Example: tamis generate runs/demo --prompt $'A=12\\nB=34\\nA=' --max-new-tokens 2");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
