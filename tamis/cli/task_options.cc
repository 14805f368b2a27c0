#include "tamis/cli/task_options.h"

#include <cctype>

#include "tamis/cli/values.h"

namespace tamis::cli {
namespace {

std::string haystack_help(data::HaystackUse use) {
  const std::string help =
      "Text file to hide the needles in, from its beginning, repeated when it is too short; - reads standard input";
  return help + (use == data::HaystackUse::kRequired ? " (required)" : " (default: five sentences, repeated)");
}

}  // namespace

void add_task_options(CLI::App& command, const data::Task& task, data::Settings& settings,
                      std::filesystem::path& haystack) {
  if (task.haystack != data::HaystackUse::kNone) {
    command.add_option("--haystack", haystack, haystack_help(task.haystack))->type_name("FILE");
  }
  for (const data::Setting& setting : task.settings) {
    int64_t& value = settings[setting.name] = setting.value;
    add_number(command, "--" + setting.name, value, setting.help);
  }
}

std::string summary_of(const data::Task& task) {
  std::string summary = task.summary + ".";
  summary.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(summary.front())));
  return summary;
}

std::string example_haystack(const data::Task& task) {
  return task.haystack == data::HaystackUse::kRequired ? " --haystack essays.txt" : "";
}

}  // namespace tamis::cli
