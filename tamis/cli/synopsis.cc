#include "tamis/cli/synopsis.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <sstream>

namespace tamis::cli {
namespace {

std::string upper_case(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return text;
}

/// The name of a value in help texts, from CLI11's name of its type, such as `INT:POSITIVE`.
std::string value_name(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  const std::string type = option.get_type_name();
  const std::string name = type.substr(0, type.find(':'));
  const size_t end = std::min(name.find(','), name.size());
  const std::string word = name.substr(0, end), rest = name.substr(end);  // "INT", ",..."
  if (word == "INT" || word == "UINT") return "N" + rest;
  if (word == "FLOAT") return "X" + rest;
  return name;
}

OptionSynopsis synopsis_of(const CLI::Option& option) {
  OptionSynopsis synopsis{.names = {},
                          .value = value_name(option),
                          .description = option.get_description(),
                          .default_value = option.get_default_str(),
                          .required = option.get_required(),
                          .repeats = option.get_items_expected_max() > 1};
  for (const std::string& name : option.get_snames()) synopsis.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) synopsis.names.push_back("--" + name);
  if (synopsis.names.empty()) synopsis.names.push_back(upper_case(option.get_name(/*positional=*/true)));
  return synopsis;
}

std::vector<std::pair<std::string, std::string>> environment_variables() {
  return {{"TAMIS_MAX_ISA", "avx2, avx512 or, on 64-bit Arm, neon: use no newer instructions"},
          {"TAMIS_PYTHON", "Python with matplotlib, which draws the figures of studies, and lm_eval"},
          {"PYTHONPATH", "Where it finds packages, after the folder python of a clone"},
          {"TAMIS_STUDIES", "Directory with the recipes of `tamis repro`"},
          {"TAMIS_CUDA_KERNELS", "1: use the CUDA kernels of screening on a GPU; default: plain torch"},
          {"OMP_*, GOMP_*", "Any of them but OMP_NUM_THREADS selects libgomp instead of Tamis's own threads"},
          {"RANK, WORLD_SIZE, ...", "Set by torchrun, srun or mpirun: this process is one of several"},
          {"GLOO_SOCKET_IFNAME", "Network interface between several processes, such as ib0"},
          {"TORCH_CPP_LOG_LEVEL", "INFO, WARNING or ERROR: show LibTorch's log of connections, too"},
          {"COLUMNS", "Width of help, 40 to 120; default: that of the terminal"},
          {"NO_COLOR", "If it is not empty, no colours"},
          {"TMPDIR", "Directory of temporary files; default: /tmp"}};
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) {
    if (!line.empty()) lines.push_back(line);
  }
  return lines;
}

}  // namespace

CommandSynopsis synopsis_of(const CLI::App& app, const std::string& path) {
  CommandSynopsis command{.path = path, .summary = app.get_description(), .examples = lines_of(app.get_footer())};
  std::vector<OptionSynopsis> common;  // --help and --version stand last
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) {
      command.commands_are = upper_case(option->get_single_name());
    } else if (option->get_positional()) {
      command.arguments.push_back(synopsis_of(*option));
    } else {
      auto& list = option == app.get_help_ptr() || option == app.get_version_ptr() ? common : command.options;
      list.push_back(synopsis_of(*option));
    }
  }
  command.options.insert(command.options.end(), common.begin(), common.end());
  if (app.get_parent() == nullptr) command.environment = environment_variables();
  for (const CLI::App* each : app.get_subcommands({})) {
    command.commands.push_back(synopsis_of(*each, path + " " + each->get_name()));
  }
  return command;
}

std::string usage_of(const CommandSynopsis& command) {
  std::string usage = command.path;
  for (const OptionSynopsis& argument : command.arguments) {
    const std::string name = argument.names.front() + (argument.repeats ? "..." : "");
    usage += argument.required ? " " + name : " [" + name + "]";
  }
  if (!command.commands.empty()) return usage + " " + command.commands_are + " ...";
  bool optional = false;
  for (const OptionSynopsis& option : command.options) {
    if (option.required) usage += " " + option.names.back() + " " + option.value;
    optional = optional || !(option.required || option.names.back() == "--help");
  }
  return usage + (optional ? " [OPTIONS]" : "");
}

std::string names_of(const OptionSynopsis& option) {
  const std::string names = fmt::format("{}", fmt::join(option.names, ", "));
  const bool argument = !names.starts_with('-');
  return argument || !option.takes_value() ? names : names + " " + option.value;
}

std::string description_of(const OptionSynopsis& option) {
  if (!option.takes_value()) return option.description + (option.default_value == "true" ? " (default: on)" : "");
  if (option.default_value.empty()) return option.description;
  return fmt::format("{} (default: {})", option.description, option.default_value);
}

std::vector<std::string> choices_of(const OptionSynopsis& option) {
  std::vector<std::string> choices;
  if (option.value.find('|') == std::string::npos) return choices;
  std::istringstream words(option.value);
  for (std::string word; std::getline(words, word, '|');) choices.push_back(word);
  return choices;
}

}  // namespace tamis::cli
