#include "tamis/cli/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/cli/commands.h"

namespace tamis::cli {
namespace {

using Commands = std::vector<const CommandSynopsis*>;

/// `command` and all commands below it.
void collect(const CommandSynopsis& command, Commands& commands) {
  commands.push_back(&command);
  for (const CommandSynopsis& each : command.commands) collect(each, commands);
}

std::string last_word(const std::string& path) {
  return path.substr(path.rfind(' ') + 1);
}

std::vector<std::string> names_below(const CommandSynopsis& command) {
  std::vector<std::string> names;
  for (const CommandSynopsis& each : command.commands) names.push_back(last_word(each.path));
  return names;
}

/// In single quotes, as all three shells read them.
std::string in_quotes(std::string_view text, std::string_view quote_inside = "'\\''") {
  std::string result = "'";
  for (const char c : text) {
    if (c == '\'') {
      result += quote_inside;
    } else {
      result += c;
    }
  }
  return result + "'";
}

/// The paths of all commands but the program itself and `help`, whose words are those of other commands.
std::vector<std::string> paths_below(const Commands& commands) {
  std::vector<std::string> paths;
  for (const CommandSynopsis* command : commands) {
    if (command != commands.front() && last_word(command->path) != "help") paths.push_back(in_quotes(command->path));
  }
  return paths;
}

// bash: one function that determines which command is being written and what is expected at the cursor.

/// The bash command that completes a value; empty: none.
std::string bash_action(const OptionSynopsis& option) {
  if (option.value == "FILE") return "_tamis_paths -f";
  if (option.value == "DIR") return "_tamis_paths -d";
  if (option.value == "TOML") return "_tamis_paths -d -- -f -X '!*.toml'";
  const std::vector<std::string> choices = choices_of(option);
  return choices.empty() ? "" : fmt::format("_tamis_words {}", in_quotes(fmt::format("{}", fmt::join(choices, " "))));
}

/// `PATTERN|PATTERN) ACTION ;;`, a line for each action.
std::string bash_cases(const std::map<std::string, std::vector<std::string>>& patterns_of_action) {
  std::string text;
  for (const auto& [action, patterns] : patterns_of_action) {
    if (!action.empty()) text += fmt::format("      {}) {} ;;\n", fmt::join(patterns, "|"), action);
  }
  return text;
}

std::string bash_script(const Commands& commands) {
  std::vector<std::string> with_values;
  std::map<std::string, std::vector<std::string>> values, options, arguments;
  for (const CommandSynopsis* command : commands) {
    std::vector<std::string> names;
    for (const OptionSynopsis& option : command->options) {
      for (const std::string& name : option.names) {
        names.push_back(name);
        if (!option.takes_value()) continue;
        with_values.push_back(in_quotes(command->path + " " + name));
        values[bash_action(option)].push_back(in_quotes(command->path + " " + name));
      }
    }
    options[fmt::format("_tamis_words {}", in_quotes(fmt::format("{}", fmt::join(names, " "))))].push_back(
        in_quotes(command->path));
    if (!command->commands.empty()) {
      const std::string words = fmt::format("{}", fmt::join(names_below(*command), " "));
      arguments[fmt::format("_tamis_words {}", in_quotes(words))].push_back(in_quotes(command->path + " 0"));
    }
    for (size_t i = 0; i < command->arguments.size(); ++i) {
      arguments[bash_action(command->arguments[i])].push_back(in_quotes(fmt::format("{} {}", command->path, i)));
    }
  }
  return fmt::format(R"(# Completion of tamis for bash, made by `tamis completion bash`.

_tamis_words() {{
  mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}}

# _tamis_paths COMPGEN_OPTIONS [-- COMPGEN_OPTIONS]: what either of them finds.
_tamis_paths() {{
  local first=()
  while (($# > 0)) && [[ $1 != -- ]]; do
    first+=("$1")
    shift
  done
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(
    compgen "${{first[@]}}" -- "$cur"
    (($# == 0)) || compgen "${{@:2}}" -- "$cur"
  )
}}

_tamis() {{
  COMPREPLY=()
  local cur=${{COMP_WORDS[COMP_CWORD]}} at=tamis option='' arguments=0 i word
  for ((i = 1; i < COMP_CWORD; ++i)); do
    word=${{COMP_WORDS[i]}}
    if [[ -n $option ]]; then
      [[ $word == '=' ]] || option='' # `--option=value` is three words here
      continue
    fi
    case "$at $word" in
      'tamis help') ;;
      {}) at="$at $word" ;;
      {}) option=$word ;;
      *' -'*) ;;
      *) arguments=$((arguments + 1)) ;;
    esac
  done
  if [[ -n $option ]]; then
    [[ $cur != '=' ]] || cur=''
    case "$at $option" in
{}    esac
  elif [[ $cur == -* ]]; then
    case "$at" in
{}    esac
  else
    case "$at $arguments" in
{}    esac
  fi
}}

complete -F _tamis tamis
)",
                     fmt::join(paths_below(commands), "|"), fmt::join(with_values, "|"), bash_cases(values),
                     bash_cases(options), bash_cases(arguments));
}

// zsh: `_arguments` with the options of the command that is being written.

std::string zsh_escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (std::string_view("[]:\\").find(c) != std::string_view::npos) result += '\\';
    result += c;
  }
  return result;
}

std::string zsh_action(const OptionSynopsis& option) {
  if (option.value == "FILE") return "_files";
  if (option.value == "DIR") return "_files -/";
  if (option.value == "TOML") return "_files -g \"*.toml\"";
  const std::vector<std::string> choices = choices_of(option);
  return choices.empty() ? " " : fmt::format("({})", fmt::join(choices, " "));
}

std::string zsh_specification(const OptionSynopsis& option, const std::string& name) {
  std::string text = option.repeats ? "*" : "";
  if (option.names.size() > 1) text += fmt::format("({})", fmt::join(option.names, " "));
  text += name + (option.takes_value() && name.starts_with("--") ? "=" : "");
  text += fmt::format("[{}]", zsh_escaped(option.description));
  if (option.takes_value()) text += fmt::format(":{}:{}", zsh_escaped(option.value), zsh_action(option));
  return in_quotes(text);
}

std::string zsh_case(const CommandSynopsis& command) {
  std::vector<std::string> words;
  for (const OptionSynopsis& option : command.options) {
    for (const std::string& name : option.names) words.push_back(zsh_specification(option, name));
  }
  for (const OptionSynopsis& argument : command.arguments) {
    words.push_back(in_quotes(fmt::format("{}:{}:{}", argument.repeats ? "*" : "", zsh_escaped(argument.names.front()),
                                          zsh_action(argument))));
  }
  std::string names;
  if (!command.commands.empty()) {
    names = "      names=(";
    for (const CommandSynopsis& each : command.commands) {
      names += "\n        " + in_quotes(fmt::format("{}:{}", last_word(each.path), zsh_escaped(each.summary)));
    }
    names += "\n      )\n";
    words.push_back(in_quotes(fmt::format("1:{0}:{{_describe {0} names}}", command.commands_are)));
  }
  return fmt::format("    ({})\n{}      _arguments -S : \\\n        {} ;;\n", in_quotes(command.path), names,
                     fmt::join(words, " \\\n        "));
}

std::string zsh_script(const Commands& commands) {
  std::string cases;
  for (const CommandSynopsis* command : commands) cases += zsh_case(*command);
  return fmt::format(R"(#compdef tamis
# Completion of tamis for zsh, made by `tamis completion zsh`.

_tamis() {{
  local at=tamis
  local -a names
  while (( CURRENT > 2 )); do
    case "$at $words[2]" in
      ('tamis help') ;;
      ({}) at="$at $words[2]" ;;
      (*) break ;;
    esac
    shift words
    (( CURRENT-- ))
  done
  case $at in
{}  esac
}}

if [[ $funcstack[1] == _tamis ]]; then
  _tamis "$@"
else
  compdef _tamis tamis
fi
)",
                     fmt::join(paths_below(commands), "|"), cases);
}

// fish: a line for each word, on the condition that its command is being written.

std::string fish_in_quotes(std::string_view text) {
  std::string escaped;
  for (const char c : text) escaped += c == '\\' ? "\\\\" : std::string(1, c);
  return in_quotes(escaped, "\\'");
}

std::string fish_action(const OptionSynopsis& option) {
  if (option.value == "FILE") return " -r -F";
  if (option.value == "DIR") return " -x -a '(__fish_complete_directories)'";
  if (option.value == "TOML") return " -x -k -a '(__fish_complete_suffix .toml)'";
  const std::vector<std::string> choices = choices_of(option);
  return choices.empty() ? " -x" : fmt::format(" -x -a {}", fish_in_quotes(fmt::format("{}", fmt::join(choices, " "))));
}

std::string fish_lines(const CommandSynopsis& command) {
  const std::string begin = fmt::format("complete -c tamis -n '__tamis_at {}'", command.path);
  std::string text;
  for (const CommandSynopsis& each : command.commands) {
    text += fmt::format("{} -a {} -d {}\n", begin, last_word(each.path), fish_in_quotes(each.summary));
  }
  for (const OptionSynopsis& argument : command.arguments) {
    if (const std::string action = fish_action(argument); action != " -x") text += begin + action + "\n";
  }
  for (const OptionSynopsis& option : command.options) {
    text += begin;
    for (const std::string& name : option.names) {
      text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    }
    if (option.takes_value()) text += fish_action(option);
    text += fmt::format(" -d {}\n", fish_in_quotes(option.description));
  }
  return text;
}

std::string fish_script(const Commands& commands) {
  std::string lines;
  for (const CommandSynopsis* command : commands) lines += fish_lines(*command);
  return fmt::format(R"(# Completion of tamis for fish, made by `tamis completion fish`.

function __tamis_at -d 'Whether the words before the cursor name this command'
    set -l at tamis
    for word in (commandline -opc)[2..-1]
        switch "$at $word"
            case {}
                set at "$at $word"
        end
    end
    test "$at" = "$argv"
end

complete -c tamis -f
{})",
                     fmt::join(paths_below(commands), " "), lines);
}

}  // namespace

std::string completion_script(const CommandSynopsis& program, const std::string& shell) {
  struct Shell {
    std::string name;
    std::string (*script)(const Commands&);
  };
  static const std::array<Shell, 3> kShells = {{{"bash", bash_script}, {"zsh", zsh_script}, {"fish", fish_script}}};
  Commands commands;
  collect(program, commands);
  std::vector<std::string> known;
  for (const Shell& each : kShells) {
    if (each.name == shell) return each.script(commands);
    known.push_back(each.name);
  }
  throw Error(ExitCode::kUsage, "completion: " + unknown_name("shell", shell, known));
}

void add_completion(CLI::App& app) {
  auto shell = std::make_shared<std::string>();
  auto* sub = app.add_subcommand("completion", "Print a completion script for a shell.");
  sub->add_option("shell", *shell, "The shell")->type_name("bash|zsh|fish")->required();
  sub->footer(
      "tamis completion bash > ~/.local/share/bash-completion/completions/tamis\n"
      "tamis completion zsh > ~/.zfunc/_tamis\n"
      "tamis completion fish > ~/.config/fish/completions/tamis.fish");
  sub->callback([&app, shell] { fmt::print("{}", completion_script(synopsis_of(app, app.get_name()), *shell)); });
}

}  // namespace tamis::cli
