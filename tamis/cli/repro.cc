#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/study_options.h"
#include "tamis/study/book.h"
#include "tamis/study/check.h"
#include "tamis/study/options.h"

namespace tamis::cli {
namespace {

struct ReproCommand {
  std::string id;
  bool list = false;
  bool check = false;
  std::filesystem::path book;
  study::StudyOptions options;
  RunOptions run;
};

void check(const ReproCommand& command) {
  study::StudyOptions options = command.options;
  if (options.plan || options.jobs != 1 || !options.overrides.empty()) {
    fail(ExitCode::kUsage, "repro: --check takes no --set, --plan or --jobs");
  }
  study::check_options(options);
  set_threads(options, command.run);
  std::vector<std::string> differ;
  bool has_header = false;
  const auto found = [&](const nlohmann::json& entry) {
    if (entry["same"] == false) differ.push_back(entry["id"]);
    if (options.json) return;
    fmt::print("{}{}", has_header ? "" : study::check_header(), study::check_line(entry));
    has_header = true;
    std::fflush(stdout);
  };
  const nlohmann::json checks =
      study::check_studies(command.id, options.tier, options.overrides, start(command.run), stderr, found);
  if (options.json) fmt::print("{}", to_line(checks));
  if (differ.empty()) return;
  std::fflush(stdout);
  fail(
      ExitCode::kRuntime,
      "repro: this version does not reproduce the stored results of {}; remove what is left of {} under runs/, and run "
      "{} again",
      fmt::join(differ, ", "), differ.size() == 1 ? "its runs" : "their runs", differ.size() == 1 ? "it" : "them");
}

void run(const ReproCommand& command) {
  if (command.list + !command.book.empty() + (command.check || !command.id.empty()) != 1) {
    fail(ExitCode::kUsage,
         "repro: expected the id of a study, --list, --check or --book DIR; tamis repro --list shows the ids");
  }
  if (command.check) return check(command);
  if (command.list) {
    const nlohmann::json studies = study::list_studies();
    fmt::print("{}", command.options.json ? to_line(studies) : study::to_table(studies));
    return;
  }
  if (!command.book.empty()) {
    const int64_t written = study::write_book(command.book);
    fmt::print("{}: {} studies written\n", one_line(command.book.string()), written);
    return;
  }
  study::StudyOptions options = command.options;
  options.recipe = study::find_study(command.id);
  options.command = "tamis repro " + command.id;
  run_study(options, command.run);
}

}  // namespace

void add_repro(CLI::App& app) {
  auto command = std::make_shared<ReproCommand>();
  study::StudyOptions& options = command->options;
  auto* sub = app.add_subcommand("repro", "Reproduce a claim, table or figure of the papers.");
  sub->add_option("id", command->id, "A study of --list")->type_name("ID");
  sub->add_flag("--list", command->list, "List all studies with their cost and their verdict so far");
  sub->add_flag("--check", command->check,
                "Train one model of this study, or of every study, again and compare it with the stored results");
  sub->add_option("--book", command->book, "Write the pages of all studies that have run, and a table of all verdicts")
      ->type_name("DIR");
  add_study_options(*sub, options, command->run);
  sub->footer("tamis repro --list\ntamis repro 002-fig1\ntamis repro --check");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
