#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/base/process.h"
#include "tamis/base/terminal.h"
#include "tamis/base/version.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/help.h"
#include "tamis/nn/tensor_memory.h"

namespace {

/// The command that was named, and its words.
std::pair<const CLI::App*, std::string> named_command(const CLI::App& app) {
  const CLI::App* command = &app;
  std::string words;
  while (!command->get_subcommands().empty()) {
    command = command->get_subcommands().front();
    words += command->get_name() + ' ';
  }
  return {command, words};
}

/// The group of commands that was named, `tamis` or `tamis eval`, when no word follows it: then its help is printed.
const CLI::App* group_without_command(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* group = named_command(app).first;
  const bool nothing_else = error.get_name() == "RequiredError" && app.remaining(/*recurse=*/true).empty();
  return nothing_else && !group->get_subcommands({}).empty() ? group : nullptr;
}

/// One line about wrong arguments.
std::string explain(const CLI::App& app, const CLI::ParseError& error) {
  const auto [command, words] = named_command(app);
  std::string text = tamis::message_of(error);
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

void run(int argc, char** argv) {
  CLI::App app("Language models that select from their context instead of spreading attention over it.", "tamis");
  app.set_version_flag("-V,--version", tamis::kVersion, "Print the version");
  app.require_subcommand(1);
  app.footer("tamis train recipes/demo.toml && tamis eval abc_digits runs/demo");
  tamis::cli::add_commands(app);
  tamis::cli::refuse_other_names(app, "command");
  tamis::cli::refuse_empty_names(app);
  tamis::cli::use_help(app);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const CLI::App* group = group_without_command(app, error);
    if (group != nullptr) {
      tamis::cli::print_help(*group);
    } else if (error.get_exit_code() == 0) {
      std::ostringstream text;  // --help, --version
      app.exit(error, text);
      fmt::print("{}", text.str());
    } else {
      tamis::fail(tamis::ExitCode::kUsage, "{}", explain(app, error));
    }
  }
  tamis::flush_output();
}

int refuse(const std::string& text, tamis::ExitCode code) {
  const char* name = tamis::use_colour(stderr) ? "\x1b[1;31mtamis:\x1b[0m" : "tamis:";
  tamis::print_message(stderr, fmt::format("{} {}\n", name, tamis::one_line(text)));
  return static_cast<int>(code);
}

int status_of(int argc, char** argv) {
  try {
    tamis::nn::keep_tensor_memory();
    run(argc, argv);
    return 0;
  } catch (const tamis::Error& error) {
    return refuse(error.what(), error.code());
  } catch (const std::bad_alloc&) {
    tamis::end_process(tamis::kOutOfMemory);
  } catch (const std::exception& error) {
    std::string text = tamis::message_of(error);
    if (std::ferror(stdout) != 0) {  // fmt::print names no stream
      constexpr std::string_view kOfFmt = "cannot write to file";
      if (text.starts_with(kOfFmt)) text.replace(0, kOfFmt.size(), "cannot write");
      text = "standard output: " + text;
    }
    return refuse(text, tamis::ExitCode::kRuntime);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int status = status_of(argc, argv);
  std::fflush(nullptr);
  _exit(status);  // without LibTorch's destructors, which take half as long as all the rest of `tamis --version`
}
