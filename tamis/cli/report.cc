#include "tamis/report/report.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/input.h"

namespace tamis::cli {

void add_report(CLI::App& app) {
  struct Options : report::ReportOptions {
    std::string text_file;
    RunOptions run_options;
  };
  auto options = std::make_shared<Options>();
  auto* command =
      app.add_subcommand("report", "Write report.html of a run: curves, retrieval, relevance maps, samples.");
  command->add_option("run", options->run, "Directory written by `tamis train`")->required();
  command->add_option("--output", options->output, "Where to write it (default: report.html in the run)");
  command->add_option("--text", options->text_file,
                      "Text for the relevance maps, - for standard input (default: a validation example)");
  command->add_option("--tokens", options->most_tokens, "Most tokens of the text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  add_run_options(*command, options->run_options);
  command->footer("Example: tamis report runs/demo");
  command->callback([options] {
    options->device = start(options->run_options);
    if (!options->text_file.empty()) options->text = read_text(options->text_file);
    const report::WrittenReport written = report::write_report(*options);
    for (const std::string& part : written.left_out) fmt::print(stderr, "tamis: report without {}\n", part);
    fmt::print("{}\n", written.path.string());
  });
}

}  // namespace tamis::cli
