#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"

namespace tamis::cli {

void add_report(CLI::App& app) {
  auto command = std::make_shared<commands::ReportCommand>();
  report::ReportOptions& options = command->options;
  auto* sub = app.add_subcommand("report", "Write report.html of a run: curves, retrieval, relevance maps, samples.");
  sub->add_option("run", options.run, "Directory written by `tamis train`")->type_name("DIR")->required();
  sub->add_option("--beside", options.beside,
                  "Another evaluated run, whose grid stands below this one's; several times")
      ->type_name("DIR")
      ->allow_extra_args(false);
  sub->add_option("--output", options.output, "Where to write it (default: report.html in the run)")->type_name("FILE");
  sub->add_option("--text", command->text_file,
                  "Text for the relevance maps; - reads standard input (default: a validation example)")
      ->type_name("FILE");
  sub->add_option("--tokens", options.most_tokens, "Most tokens of the text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_run_options(*sub, command->run);
  sub->footer("tamis report runs/demo --beside runs/demo_transformer");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
