#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/base/version.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/help.h"

namespace {

/// LibTorch's errors put a backtrace behind their message: keep the first line.
std::string first_line(const std::string& text) {
  return text.substr(0, text.find('\n'));
}

/// The command that was asked for, with its words.
std::pair<const CLI::App*, std::string> asked_command(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string words;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    words += command->get_name() + ' ';
  }
  return {command, words};
}

/// The group of commands that was named, `tamis` or `tamis eval`, when nothing stands behind it: its help is wanted.
const CLI::App* group_without_command(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* group = asked_command(app).first;
  const bool nothing_else = error.get_name() == "RequiredError" && app.remaining(/*recurse=*/true).empty();
  return nothing_else && !group->get_subcommands({}).empty() ? group : nullptr;
}

/// One line about arguments that do not fit.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const auto [command, words] = asked_command(app);
  std::string text = first_line(error.what());
  const std::vector<std::string> rest = app.remaining(/*recurse=*/true);
  if (!rest.empty() && rest.front().starts_with("--")) {
    std::vector<std::string> known;
    for (const CLI::Option* option : command->get_options()) {
      for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
    }
    text = tamis::unknown_name("option", rest.front().substr(0, rest.front().find('=')), known);
  }
  return fmt::format("{}{}; `tamis {}--help` shows an example",
                     words.empty() ? "" : words.substr(0, words.size() - 1) + ": ", text, words);
}

int run(int argc, char** argv) {
  CLI::App app("Language models that select from their context instead of spreading attention over it.",
               "tamis");
  app.set_version_flag("-V,--version", tamis::kVersion, "Print the version");
  app.require_subcommand(1);
  app.footer("tamis train recipes/demo.toml && tamis eval abc_digits runs/demo");
  tamis::cli::add_commands(app);
  tamis::cli::refuse_other_names(app, "command");
  tamis::cli::use_help(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
    if (const CLI::App* group = group_without_command(app, error)) {
      tamis::cli::print_help(*group);
      return 0;
    }
    fmt::print(stderr, "tamis: {}\n", explain(app, error));
    return static_cast<int>(tamis::ExitCode::kUsage);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const tamis::Error& error) {
    fmt::print(stderr, "tamis: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "tamis: out of memory; try a shorter sequence or a smaller batch\n");
  } catch (const std::exception& error) {
    fmt::print(stderr, "tamis: {}\n", first_line(error.what()));
  }
  return static_cast<int>(tamis::ExitCode::kRuntime);
}
