#include "tamis/infer/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>

#include "tamis/base/input.h"
#include "tamis/base/message.h"
#include "tamis/base/terminal.h"
#include "tamis/commands/commands.h"
#include "tamis/commands/common.h"

namespace tamis::commands {
namespace {

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

}  // namespace

void run(const GenerateCommand& command) {
  const at::Device device = start(command.run);
  const std::string prompt = command.prompt == "-" ? read_input("-") : command.prompt;
  const infer::LoadedModel loaded = infer::load(command.checkpoint, device, model_changes(command.run));
  if (command.json) {
    fmt::print("{}", to_line(to_json(infer::generate(loaded, prompt, command.options))));
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

}  // namespace tamis::commands
