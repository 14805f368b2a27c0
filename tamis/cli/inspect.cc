#include "tamis/report/inspect.h"

#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/terminal.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/input.h"
#include "tamis/report/page.h"

namespace tamis::cli {
namespace {

struct Options : report::InspectOptions {
  int64_t psi = 0;  // > 0: no checkpoint
  int64_t vocab_size = 257;
  std::string text_file;
  std::filesystem::path html;
  RunOptions run;
  bool json = false;
};

void run(const Options& options) {
  if (options.checkpoint.empty() == (options.psi == 0)) {
    fail(ExitCode::kUsage, "inspect: expected a checkpoint or --psi, but got {}; try: tamis inspect runs/demo",
         options.psi == 0 ? "neither" : "both");
  }
  const nlohmann::json found = options.psi > 0
                                   ? report::inspect_config({{"psi", options.psi}, {"vocab_size", options.vocab_size}})
                                   : report::inspect(options);
  if (!options.html.empty()) write_file_atomic(options.html, report::make_page(found));
  if (options.json) {
    fmt::print("{}", to_line(report::inspection_json(found)));
  } else if (options.html.empty()) {
    fmt::print("{}", report::inspection_text(found, terminal_columns()));
  } else {
    fmt::print("{}\n", options.html.string());
  }
}

}  // namespace

void add_inspect(CLI::App& app) {
  auto options = std::make_shared<Options>();
  auto* command = app.add_subcommand("inspect", "Count parameters; show windows, acceptance widths, relevance maps.");
  command->add_option("checkpoint", options->checkpoint, "Checkpoint or run directory");
  command->add_option("--psi", options->psi, "Without a checkpoint: count the parameters of this Psi")
      ->check(CLI::PositiveNumber);
  command->add_option("--vocab", options->vocab_size, "Vocabulary for --psi")->capture_default_str();
  command->add_option("--text", options->text_file, "Text whose relevance maps to show; - for standard input");
  command->add_option("--html", options->html, "Write a page with the maps of all tiles here");
  command->add_option("--tokens", options->most_tokens, "Most tokens of the text")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command->add_flag("--expand-windows,!--no-expand-windows", options->expand_windows,
                    "Make windows beyond the training length infinite (SWE)");
  add_json_option(*command, options->json);
  add_run_options(*command, options->run);
  command->footer(
      "Example: tamis inspect runs/demo --text letter.txt --html maps.html\n"
      "         tamis inspect --psi 16 --vocab 50257 --json");
  command->callback([options] {
    options->device = start(options->run);
    if (!options->text_file.empty()) options->text = read_text(options->text_file);
    run(*options);
  });
}

}  // namespace tamis::cli
