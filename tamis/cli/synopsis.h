#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

namespace tamis::cli {

/// An option or argument of a command, as it is defined.
struct OptionSynopsis {
  std::vector<std::string> names;  // "-h", "--help"; of an argument its name alone: "RECIPE"
  std::string value;               // FILE, N, "cpu|cuda"; empty: takes none
  std::string description;
  std::string default_value;  // empty: none
  bool required = false;
  bool repeats = false;  // takes several values, or may be given several times

  bool takes_value() const { return !value.empty(); }
};

/// A command as its CLI11 definition describes it. Help, shell completion and manual pages are all made from this.
///
/// The name of an option's value determines what a shell offers for it: paths for FILE, TOML and DIR, one of these
/// words for `a|b|c`, nothing for any other name.
struct CommandSynopsis {
  std::string path;  // "tamis eval loss"
  std::string summary;
  std::vector<OptionSynopsis> arguments;
  std::vector<OptionSynopsis> options;
  std::string commands_are;  // "TASK": the name of the first word of `commands`
  std::vector<CommandSynopsis> commands;
  std::vector<std::pair<std::string, std::string>> environment;  // of the program: variables, and what they do
  std::vector<std::string> examples;
};

/// `app` and all commands below it; `path` is its name with those of the commands above.
CommandSynopsis synopsis_of(const CLI::App& app, const std::string& path);

/// `tamis generate DIR --prompt TEXT [OPTIONS]`: the required arguments and options, in order.
std::string usage_of(const CommandSynopsis& command);

/// `--top-k N`, `-h, --help`.
std::string names_of(const OptionSynopsis& option);

/// The description, and the default where there is one.
std::string description_of(const OptionSynopsis& option);

/// The words of `a|b|c`, else none.
std::vector<std::string> choices_of(const OptionSynopsis& option);

}  // namespace tamis::cli
