#include "tamis/report/report.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/input.h"
#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/base/output_file.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/values.h"

namespace tamis::cli {
namespace {

struct ReportCommand {
  report::ReportOptions options;
  std::string text_file;  // "-" reads standard input
  RunOptions run;
  bool json = false;
};

void refuse_runs_named_twice(const std::vector<std::filesystem::path>& runs) {
  std::set<std::filesystem::path> named;
  for (const std::filesystem::path& run : runs) {
    if (named.insert(run.lexically_normal()).second) continue;
    fail(ExitCode::kUsage, "report: {} is named twice; name each run once", run.string());
  }
}

void run(const ReportCommand& command) {
  check_options(command.run);
  refuse_runs_named_twice(command.options.runs);
  if (!command.options.output.empty()) check_output_file(command.options.output);
  const at::Device device = start(command.run);
  report::ReportOptions options = command.options;
  if (!command.text_file.empty()) options.text = read_input(command.text_file);
  const report::WrittenReport written = report::write_report(options, device);
  for (const std::string& part : written.left_out) {
    print_message(stderr, fmt::format("tamis: report without {}\n", one_line(part)));
  }
  const nlohmann::json summary = {{"report", written.path.string()}, {"left_out", written.left_out}};
  fmt::print(summary_stream(written.path), "{}", command.json ? to_line(summary) : written.path.string() + "\n");
}

}  // namespace

void add_report(CLI::App& app) {
  auto command = std::make_shared<ReportCommand>();
  report::ReportOptions& options = command->options;
  auto* sub = app.add_subcommand(
      "report", "Write report.html of a run, or of several compared: curves, evaluations, relevance maps, samples.");
  sub->add_option("runs", options.runs, "Directories written by `tamis train`; the others are compared with the first")
      ->type_name("DIR")
      ->required();
  using Runs = std::vector<std::filesystem::path>;
  auto others = std::make_shared<Runs>();
  const auto add_others = [others](const Runs& runs) { others->insert(others->end(), runs.begin(), runs.end()); };
  sub->add_option_function<Runs>("--compare", add_others,
                                 "Another run to compare with, the same as one more RUN; may be repeated")
      ->type_name("DIR")
      ->allow_extra_args(false);
  sub->add_option_function<Runs>("--beside", add_others)  // its name in version 0.1
      ->group("")
      ->allow_extra_args(false);
  sub->add_option("--output", options.output, "Where to write it (default: report.html in the first run)")
      ->type_name("FILE");
  sub->add_option("--text", command->text_file,
                  "Text for the relevance maps; - reads standard input (default: a validation example)")
      ->type_name("FILE");
  add_number(*sub, "--tokens", options.most_tokens, "Maximum number of tokens of the text", whole(1));
  add_json_option(*sub, command->json);
  add_run_options(*sub, command->run);
  sub->footer("tamis report runs/demo runs/demo_transformer");
  sub->callback([command, others] {
    Runs& runs = command->options.runs;
    runs.insert(runs.end(), others->begin(), others->end());
    run(*command);
  });
}

}  // namespace tamis::cli
