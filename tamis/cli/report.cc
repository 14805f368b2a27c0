#include <filesystem>
#include <memory>
#include <vector>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"
#include "tamis/cli/values.h"

namespace tamis::cli {

void add_report(CLI::App& app) {
  auto command = std::make_shared<commands::ReportCommand>();
  report::ReportOptions& options = command->options;
  auto* sub = app.add_subcommand(
      "report", "Write report.html of a run, or of several compared: curves, evaluations, relevance maps, samples.");
  sub->add_option("runs", options.runs, "Directories written by `tamis train`; the others are compared with the first")
      ->type_name("DIR")
      ->required();
  auto beside = std::make_shared<std::vector<std::filesystem::path>>();
  sub->add_option("--beside", *beside, "Another run to compare with: the same as one more RUN; several times")
      ->type_name("DIR")
      ->allow_extra_args(false);
  sub->add_option("--output", options.output, "Where to write it (default: report.html in the first run)")
      ->type_name("FILE");
  sub->add_option("--text", command->text_file,
                  "Text for the relevance maps; - reads standard input (default: a validation example)")
      ->type_name("FILE");
  add_value(*sub, "--tokens", options.most_tokens, whole(1), "Most tokens of the text");
  add_json_option(*sub, command->json);
  add_run_options(*sub, command->run);
  sub->footer("tamis report runs/demo runs/demo_transformer");
  sub->callback([command, beside] {
    std::vector<std::filesystem::path>& runs = command->options.runs;
    runs.insert(runs.end(), beside->begin(), beside->end());
    run(*command);
  });
}

}  // namespace tamis::cli
