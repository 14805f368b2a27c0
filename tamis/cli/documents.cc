// Commands about the commands: help, shell completion, manual pages. All are made from the CLI11 definitions.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/names.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/completion.h"
#include "tamis/cli/help.h"
#include "tamis/cli/manual.h"

namespace tamis::cli {

void add_help(CLI::App& app) {
  auto words = std::make_shared<std::vector<std::string>>();
  auto* sub = app.add_subcommand("help", "Show the help of a command.");
  sub->add_option("command", *words, "Its words, such as eval loss")->type_name("COMMAND");
  sub->footer("tamis help eval loss");
  sub->callback([&app, words] { print_help(find_command(app, *words)); });
}

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  auto* sub = app.add_subcommand("completion", "Print what makes a shell complete the commands and options of tamis.");
  sub->add_option("shell", *shell, "Which shell")->type_name("bash|zsh|fish")->required();
  sub->footer(
      "tamis completion bash > ~/.local/share/bash-completion/completions/tamis\n"
      "tamis completion zsh > ~/.zfunc/_tamis\n"
      "tamis completion fish > ~/.config/fish/completions/tamis.fish");
  sub->callback([&app, shell] { fmt::print("{}", completion_script(synopsis_of(app, app.get_name()), *shell)); });
}

void add_man(CLI::App& app) {
  auto directory = std::make_shared<std::filesystem::path>();
  auto* sub = app.add_subcommand("man", "Write the manual pages of all commands into a directory.");
  sub->add_option("dir", *directory, "Directory, such as share/man/man1; made where it is missing")
      ->type_name("DIR")
      ->required();
  sub->footer("tamis man ~/.local/share/man/man1 && man tamis");
  sub->callback([&app, directory] {
    make_directories(*directory);
    for (const auto& [name, text] : manual_pages(synopsis_of(app, app.get_name()))) {
      write_file_atomic(*directory / name, text);
    }
  });
}

}  // namespace tamis::cli
