#include "tamis/report/report.h"

#include <fmt/format.h>

#include <cstdio>

#include "tamis/commands/commands.h"
#include "tamis/commands/common.h"
#include "tamis/commands/input.h"

namespace tamis::commands {

void run(const ReportCommand& command) {
  const at::Device device = start(command.run);
  report::ReportOptions options = command.options;
  if (!command.text_file.empty()) options.text = read_text(command.text_file);
  const report::WrittenReport written = report::write_report(options, device);
  for (const std::string& part : written.left_out) fmt::print(stderr, "tamis: report without {}\n", part);
  fmt::print("{}\n", written.path.string());
}

}  // namespace tamis::commands
