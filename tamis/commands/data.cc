#include <fmt/format.h>

#include <cstdio>
#include <optional>

#include "tamis/base/files.h"
#include "tamis/base/output_file.h"
#include "tamis/commands/commands.h"
#include "tamis/commands/common.h"
#include "tamis/data/generate.h"
#include "tamis/data/registry.h"

namespace tamis::commands {

void run(const GenerateDataCommand& command) {
  const data::GenerateOptions& options = command.options;
  const data::Task& task = data::find_task(options.task);
  if (!command.out.empty()) check_output_file(command.out);
  std::optional<data::Haystack> haystack;
  if (!options.haystack.empty()) haystack.emplace(options.haystack);
  const data::TaskRequest request = data::request_of(options, haystack ? &*haystack : nullptr);
  const auto generate = [&](const auto& write) { data::generate(task, request, options.count, write); };
  if (command.out.empty()) {
    generate([](std::string_view line) { fmt::print("{}", line); });
  } else {
    write_file_atomic(command.out,
                      [&](FileWriter& file) { generate([&](std::string_view line) { file.write(line); }); });
    if (command.json) {
      fmt::print("{}", to_line({{"file", command.out.string()}, {"task", task.name}, {"instances", options.count}}));
    } else {
      fmt::print("{}: {} of {}\n", command.out.string(),
                 options.count == 1 ? "1 instance" : fmt::format("{} instances", options.count), task.name);
    }
  }
}

}  // namespace tamis::commands
