#include "tamis/report/report.h"

#include <fmt/format.h>

#include <cstdio>

#include "tamis/base/input.h"
#include "tamis/base/message.h"
#include "tamis/base/output_file.h"
#include "tamis/commands/commands.h"
#include "tamis/commands/common.h"

namespace tamis::commands {

void run(const ReportCommand& command) {
  if (!command.options.output.empty()) check_output_file(command.options.output);
  const at::Device device = start(command.run);
  report::ReportOptions options = command.options;
  if (!command.text_file.empty()) options.text = read_input(command.text_file);
  const report::WrittenReport written = report::write_report(options, device);
  for (const std::string& part : written.left_out) {
    print_message(stderr, fmt::format("tamis: report without {}\n", part));
  }
  if (command.json) {
    fmt::print("{}", to_line({{"report", written.path.string()}, {"left_out", written.left_out}}));
  } else {
    fmt::print("{}\n", written.path.string());
  }
}

}  // namespace tamis::commands
