#include "tamis/train/next_commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "tamis/data/registry.h"

namespace tamis::train {
namespace {

/// Options for the settings that differ from the task's defaults.
std::string changed_settings(const SourceRecipe& source) {
  std::string text;
  for (const data::Setting& setting : data::find_task(source.kind).settings) {
    const auto found = source.task.settings.find(setting.name);
    if (found == source.task.settings.end() || found->second == setting.value) continue;
    text += fmt::format(" --{} {}", setting.name, found->second);
  }
  return text;
}

std::string evaluation(const SourceRecipe& source, const std::string& run) {
  if (source.kind == "text") return fmt::format("tamis eval loss {} {}", run, shell_word(source.files.front()));
  const std::string& haystack = source.task.haystack;
  return fmt::format("tamis eval {} {}{}{}", source.kind, run, changed_settings(source),
                     haystack.empty() ? "" : " --haystack " + shell_word(haystack));
}

bool is_text(const SourceRecipe& source) {
  return !source.is_task() || std::holds_alternative<data::TextTask>(data::find_task(source.kind).kind);
}

std::string generation(const TrainRecipe& train, const std::string& run) {
  if (train.sample_prompt.empty()) return fmt::format("tamis generate {} --prompt TEXT", run);
  return fmt::format("tamis generate {} --prompt {} --max-new-tokens {} --temperature {}", run,
                     shell_word(train.sample_prompt), train.sample_tokens, train.sample_temperature);
}

}  // namespace

std::vector<std::string> next_commands(const Recipe& recipe) {
  const std::string run = shell_word(recipe.run.dir);
  std::vector<std::string> commands;
  for (const SourceRecipe& source : recipe.data.sources) {
    // The validation of corpora and prompts is their evaluation.
    if (source.kind == "text" || source.is_task()) commands.push_back(evaluation(source, run));
  }
  if (std::ranges::any_of(recipe.data.sources, is_text)) commands.push_back(generation(recipe.train, run));
  commands.push_back(fmt::format("tamis report {}", run));
  return commands;
}

std::string shell_word(const std::string& text) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) || std::string_view("_-./:=+,@%").find(c) != std::string_view::npos;
  };
  const auto control = [](unsigned char c) { return c < 0x20 || c == 0x7f; };
  if (!text.empty() && std::ranges::all_of(text, plain)) return text;
  const bool escaped = std::ranges::any_of(text, control);
  std::string word = escaped ? "$'" : "'";
  for (const char c : text) {
    if (escaped && (c == '\\' || c == '\'')) {
      word += {'\\', c};
    } else if (c == '\'') {
      word += "'\\''";
    } else if (c == '\n') {
      word += "\\n";
    } else if (control(static_cast<unsigned char>(c))) {
      word += fmt::format("\\x{:02x}", c);
    } else {
      word += c;
    }
  }
  return word + "'";
}

}  // namespace tamis::train
