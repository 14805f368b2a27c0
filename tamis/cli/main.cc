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
  CLI::App app("Tamis: language models that select from their context instead of spreading attention over it.",
               "tamis");
  app.set_version_flag("--version", tamis::kVersion);
  app.require_subcommand(1);
  app.footer("Example: tamis train recipes/demo.toml && tamis eval abc_digits runs/demo");
  tamis::cli::add_commands(app);
  tamis::cli::refuse_other_names(app, "command");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help, --version
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
