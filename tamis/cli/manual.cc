#include "tamis/cli/manual.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string_view>
#include <vector>

#include "tamis/base/files.h"
#include "tamis/base/version.h"
#include "tamis/cli/commands.h"

namespace tamis::cli {
namespace {

/// The text for troff: no line begins a request, and hyphens can be copied.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\') {
      result += "\\e";
    } else if (c == '-') {
      result += "\\-";
    } else if (c == '\'') {
      result += "\\(aq";
    } else if (c == '^') {
      result += "\\(ha";
    } else if (c == '~') {
      result += "\\(ti";
    } else if (c == '`') {
      result += "\\(ga";
    } else {
      result += c;
    }
  }
  return result.starts_with('.') ? "\\&" + result : result;
}

std::string bold(std::string_view text) {
  return "\\fB" + escaped(text) + "\\fR";
}

std::string page_name(std::string path) {
  for (char& c : path) c = c == ' ' ? '-' : c;
  return path;
}

std::string entry(const std::string& names, const std::string& description) {
  return fmt::format(".TP\n{}\n{}\n", names, escaped(description));
}

std::string options_section(std::string_view title, const std::vector<OptionSynopsis>& options) {
  if (options.empty()) return "";
  std::string text = fmt::format(".SH {}\n", title);
  for (const OptionSynopsis& option : options) text += entry(bold(names_of(option)), description_of(option));
  return text;
}

std::string page(const CommandSynopsis& command, const std::string& parent) {
  const std::string name = page_name(command.path);
  const std::string_view summary(command.summary.data(), command.summary.find_last_not_of('.') + 1);
  std::string text = fmt::format(".TH \"{}\" 1 \"\" \"tamis {}\" \"Tamis\"\n", escaped(name), kVersion);
  text += fmt::format(".SH NAME\n{} \\- {}\n", escaped(name), escaped(summary));
  text += fmt::format(".SH SYNOPSIS\n{}\n", bold(usage_of(command)));
  text += options_section("ARGUMENTS", command.arguments);
  if (!command.commands.empty()) {
    text += ".SH COMMANDS\n";
    for (const CommandSynopsis& each : command.commands) {
      text += entry(bold(each.path) + fmt::format(" (see {}(1))", bold(page_name(each.path))), each.summary);
    }
  }
  text += options_section("OPTIONS", command.options);
  if (!command.environment.empty()) {
    text += ".SH ENVIRONMENT\n";
    for (const auto& [name, description] : command.environment) text += entry(bold(name), description);
  }
  if (!command.examples.empty()) {
    text += ".SH EXAMPLES\n.nf\n";
    for (const std::string& example : command.examples) text += escaped(example) + "\n";
    text += ".fi\n";
  }
  if (!parent.empty()) {
    text += fmt::format(".SH SEE ALSO\n{}(1)\n", bold(parent));
    return text;
  }
  return text +
         ".SH EXIT STATUS\n"
         ".TP\n0\nDone.\n"
         ".TP\n1\nSomething failed that no other code names.\n"
         ".TP\n2\nAn option, a recipe or a configuration is wrong.\n"
         ".TP\n3\nAn input file is missing, damaged or of the wrong kind.\n"
         ".TP\n20\nTraining met a number that is not finite.\n"
         ".TP\n21\nAnother process of a run was lost, does not answer or did not come.\n"
         ".TP\n30\nThe disk is full, read\\-only or failing.\n"
         ".TP\n129, 130, 143\nStopped by SIGHUP, SIGINT or SIGTERM after a clean save.\n";
}

void add_pages(const CommandSynopsis& command, const std::string& parent, std::map<std::string, std::string>& pages) {
  const std::string name = page_name(command.path);
  pages[name + ".1"] = page(command, parent);
  for (const CommandSynopsis& each : command.commands) add_pages(each, name, pages);
}

}  // namespace

std::map<std::string, std::string> manual_pages(const CommandSynopsis& program) {
  std::map<std::string, std::string> pages;
  add_pages(program, "", pages);
  return pages;
}

void add_man(CLI::App& app) {
  auto directory = std::make_shared<std::filesystem::path>();
  auto* sub = app.add_subcommand("man", "Write the manual pages of all commands into a directory.");
  sub->add_option("dir", *directory, "Directory, such as share/man/man1; created if it is missing")
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
