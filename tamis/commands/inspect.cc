#include "tamis/report/inspect.h"

#include <fmt/format.h>

#include <cstdio>

#include "tamis/base/files.h"
#include "tamis/base/input.h"
#include "tamis/base/output_file.h"
#include "tamis/base/terminal.h"
#include "tamis/commands/commands.h"
#include "tamis/commands/common.h"
#include "tamis/report/page.h"
#include "tamis/report/recipe_inspection.h"
#include "tamis/train/recipe.h"

namespace tamis::commands {
namespace {

nlohmann::json find(const InspectCommand& command, const report::InspectOptions& options, at::Device device) {
  if (command.psi > 0) return report::inspect_config({{"psi", command.psi}, {"vocab_size", command.vocab_size}});
  if (!command.of_recipe()) return report::inspect(options, device);
  return report::inspect_recipe(train::load_recipe(options.checkpoint, command.overrides), device);
}

}  // namespace

void run(const InspectCommand& command) {
  if (!command.html.empty()) check_output_file(command.html);
  const at::Device device = start(command.run);
  report::InspectOptions options = command.options;
  if (!command.text_file.empty()) options.text = read_input(command.text_file);
  const nlohmann::json found = find(command, options, device);
  if (!command.html.empty()) write_file_atomic(command.html, report::make_page("report.html", found));
  if (command.json) {
    fmt::print("{}", to_line(report::inspection_json(found)));
    return;
  }
  if (command.html.empty() && options.map.file.empty()) {
    fmt::print("{}", report::inspection_text(found, terminal_columns()));
  }
  for (const std::filesystem::path& written : {command.html, options.map.file}) {
    if (!written.empty()) fmt::print("{}\n", written.string());
  }
}

}  // namespace tamis::commands
