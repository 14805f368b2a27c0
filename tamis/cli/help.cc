#include "tamis/cli/help.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string_view>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/base/terminal.h"
#include "tamis/cli/commands.h"

namespace tamis::cli {
namespace {

constexpr int kLeastColumns = 40, kMostColumns = 120;
constexpr size_t kIndent = 2;

/// The words, with those longer than `columns` broken after commas.
std::vector<std::string> parts_that_fit(const std::vector<std::string>& words, size_t columns) {
  std::vector<std::string> parts;
  for (std::string_view rest : words) {
    while (rest.size() > columns) {
      const size_t comma = rest.rfind(',', columns - 1);
      if (comma == std::string_view::npos) break;
      parts.emplace_back(rest.substr(0, comma + 1));
      rest.remove_prefix(comma + 1);
    }
    parts.emplace_back(rest);
  }
  return parts;
}

/// The words of a text, put into lines of `columns` that begin at column `first`; lines but the last end with
/// `line_end`, and those after the first are indented by `hanging` more.
std::string wrapped(const std::vector<std::string>& words, size_t first, size_t columns, std::string_view line_end = "",
                    size_t hanging = 0) {
  std::string text;
  size_t column = first;
  for (const std::string& word : parts_that_fit(words, columns - first)) {
    if (!text.empty() && column + 1 + word.size() + line_end.size() > columns) {
      column = first + hanging;
      text += fmt::format("{}\n{:{}}", line_end, "", column);
    } else if (!text.empty()) {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
  }
  return text;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

/// The parts of a shell command that stay on one line: a quoted text, an option with its value.
std::vector<std::string> shell_parts_of(const std::string& text) {
  std::vector<std::string> words = {""};
  char quote = '\0';
  for (const char c : text) {
    const bool after_option = words.back().starts_with('-') && words.back().find(' ') == std::string::npos;
    if (c == ' ' && quote == '\0' && !after_option) {
      words.emplace_back();
      continue;
    }
    if (c == quote) {
      quote = '\0';
    } else if (quote == '\0' && (c == '\'' || c == '"')) {
      quote = c;
    }
    words.back() += c;
  }
  return words;
}

class Page {
 public:
  Page(int columns, bool colour) : columns_(static_cast<size_t>(columns)), colour_(colour) {}

  void paragraph(const std::string& text) { text_ += wrapped(words_of(text), 0, columns_) + "\n"; }

  void heading(std::string_view name) {
    text_ += '\n';
    text_ += colour_ ? fmt::format("\x1b[1m{}:\x1b[0m", name) : fmt::format("{}:", name);
  }

  void usage(const std::string& usage) {
    heading("Usage");
    text_ += ' ' + wrapped(words_of(usage), 7, columns_) + "\n";
  }

  /// Names on the left, descriptions on the right; below the name where it is too long for its column.
  void list(std::string_view name, const std::vector<std::pair<std::string, std::string>>& entries) {
    if (entries.empty()) return;
    const size_t widest = columns_ * 2 / 5;
    size_t width = 0;
    for (const auto& [left, right] : entries) {
      if (left.size() <= widest) width = std::max(width, left.size());
    }
    const size_t column = kIndent + width + 2;
    heading(name);
    text_ += '\n';
    for (const auto& [left, right] : entries) {
      text_ += fmt::format("{:{}}{}", "", kIndent, wrapped(words_of(left), kIndent, columns_));
      const bool below = left.size() > width;
      text_ += below ? fmt::format("\n{:{}}", "", column) : std::string(column - kIndent - left.size(), ' ');
      text_ += wrapped(words_of(right), column, columns_) + "\n";
    }
  }

  /// Commands that can be copied: a line that is continued ends with a backslash.
  void examples(const std::vector<std::string>& examples) {
    if (examples.empty()) return;
    heading(examples.size() == 1 ? "Example" : "Examples");
    text_ += '\n';
    for (const std::string& each : examples) {
      text_ += "  " + wrapped(shell_parts_of(each), kIndent, columns_, " \\", 4) + "\n";
    }
  }

  std::string text() && { return std::move(text_); }

 private:
  size_t columns_;
  bool colour_;
  std::string text_;
};

class HelpFormatter : public CLI::FormatterBase {
 public:
  std::string make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const override {
    return help_text(synopsis_of(*app, path_of(*app)), text_columns(), use_colour(stdout));
  }
};

}  // namespace

std::string help_text(const CommandSynopsis& command, int columns, bool colour) {
  using Entries = std::vector<std::pair<std::string, std::string>>;
  const auto entries = [](const std::vector<OptionSynopsis>& options) {
    Entries result;
    for (const OptionSynopsis& each : options) result.emplace_back(names_of(each), description_of(each));
    return result;
  };
  Entries commands;
  for (const CommandSynopsis& each : command.commands) {
    commands.emplace_back(each.path.substr(command.path.size() + 1), each.summary);
  }
  Page page(columns, colour);
  page.paragraph(command.summary);
  page.usage(usage_of(command));
  page.list("Arguments", entries(command.arguments));
  page.list("Commands", commands);
  page.list("Options", entries(command.options));
  page.list("Environment", command.environment);
  page.examples(command.examples);
  return std::move(page).text();
}

void use_help(CLI::App& app) {
  app.formatter(std::make_shared<HelpFormatter>());
  app.set_help_flag("-h,--help", "Show this help");
  for (CLI::App* each : app.get_subcommands([](CLI::App*) { return true; })) use_help(*each);
}

const CLI::App& find_command(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* command = &app;
  for (const std::string& word : words) {
    std::vector<std::string> known;
    const CLI::App* next = nullptr;
    for (const CLI::App* each : command->get_subcommands({})) {
      known.push_back(each->get_name());
      if (each->get_name() == word) next = each;
    }
    if (next == nullptr && known.empty()) {
      fail(ExitCode::kUsage, "help: `{}` has no commands below it, but got \"{}\"", path_of(*command), word);
    }
    if (next == nullptr) throw Error(ExitCode::kUsage, "help: " + unknown_name("command", word, known));
    command = next;
  }
  return *command;
}

std::string path_of(const CLI::App& app) {
  return app.get_parent() == nullptr ? app.get_name() : path_of(*app.get_parent()) + " " + app.get_name();
}

int text_columns() {
  int columns = 0;
  if (const char* given = std::getenv("COLUMNS"); given != nullptr) {
    const std::string_view text = given;
    std::from_chars(text.data(), text.data() + text.size(), columns);
  }
  if (columns <= 0) columns = is_terminal(stdout) ? terminal_columns() : 80;
  return std::clamp(columns, kLeastColumns, kMostColumns);
}

void print_help(const CLI::App& app) {
  fmt::print("{}", app.get_formatter()->make_help(&app, "", CLI::AppFormatMode::Normal));
}

void add_help(CLI::App& app) {
  auto words = std::make_shared<std::vector<std::string>>();
  auto* sub = app.add_subcommand("help", "Show the help of a command.");
  sub->add_option("command", *words, "The words of the command, such as eval loss")->type_name("COMMAND");
  sub->footer("tamis help eval loss");
  sub->callback([&app, words] { print_help(find_command(app, *words)); });
}

}  // namespace tamis::cli
