#include "tamis/shootout/shootout.h"

#include <fmt/format.h>

#include <cstdio>

#include "tamis/commands/commands.h"
#include "tamis/commands/common.h"

namespace tamis::commands {

void run(const ShootoutCommand& command) {
  shootout::ShootoutOptions options = command.options;
  if (command.run.threads > 0) options.overrides.push_back(fmt::format("train.threads={}", command.run.threads));
  fmt::print("{}", shootout::run_shootout(options, start(command.run), stderr));
}

}  // namespace tamis::commands
