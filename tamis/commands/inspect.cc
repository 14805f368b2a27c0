#include "tamis/report/inspect.h"

#include <fmt/format.h>

#include <cstdio>

#include "tamis/base/files.h"
#include "tamis/base/terminal.h"
#include "tamis/commands/commands.h"
#include "tamis/commands/common.h"
#include "tamis/commands/input.h"
#include "tamis/report/page.h"

namespace tamis::commands {

void run(const InspectCommand& command) {
  const at::Device device = start(command.run);
  report::InspectOptions options = command.options;
  if (!command.text_file.empty()) options.text = read_text(command.text_file);
  const nlohmann::json found = command.psi > 0
                                   ? report::inspect_config({{"psi", command.psi}, {"vocab_size", command.vocab_size}})
                                   : report::inspect(options, device);
  if (!command.html.empty()) write_file_atomic(command.html, report::make_page("report.html", found));
  if (command.json) {
    fmt::print("{}", to_line(report::inspection_json(found)));
  } else if (command.html.empty()) {
    fmt::print("{}", report::inspection_text(found, terminal_columns()));
  } else {
    fmt::print("{}\n", command.html.string());
  }
}

}  // namespace tamis::commands
