#include "tamis/train/train.h"

#include <fmt/format.h>

#include <cstdio>

#include "tamis/base/message.h"
#include "tamis/commands/commands.h"
#include "tamis/commands/common.h"

namespace tamis::commands {

void run(const TrainCommand& command) {
  train::TrainOptions options = command.options;
  if (command.run.threads > 0) options.overrides.push_back(fmt::format("train.threads={}", command.run.threads));
  const nlohmann::json summary = train::train(options, start(command.run), stderr);
  print_message(stderr, fmt::format("checkpoint: {}\nnext:\n", summary["checkpoint"].get<std::string>()));
  for (const auto& line : summary["next"]) print_message(stderr, fmt::format("  {}\n", line.get<std::string>()));
  if (command.json) fmt::print("{}", to_line(summary));
}

}  // namespace tamis::commands
