#include "tamis/bench/bench.h"

#include <fmt/format.h>

#include <cstdio>

#include "tamis/base/terminal.h"
#include "tamis/commands/commands.h"
#include "tamis/commands/common.h"

namespace tamis::commands {

void run(const BenchCommand& command) {
  const bench::Report report = std::visit([](const auto& bench) { return bench::run(bench, stderr); }, command.bench);
  fmt::print("{}", command.json ? to_line(to_json(report)) : to_table(report, use_colour(stdout)));
}

}  // namespace tamis::commands
