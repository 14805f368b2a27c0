#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>

#include "tamis/base/files.h"
#include "tamis/base/names.h"
#include "tamis/base/output_file.h"
#include "tamis/base/terminal.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/data_prepare.h"
#include "tamis/cli/task_options.h"
#include "tamis/cli/tokenizer.h"
#include "tamis/cli/values.h"
#include "tamis/data/generate.h"
#include "tamis/data/options.h"
#include "tamis/data/registry.h"

namespace tamis::cli {
namespace {

struct GenerateDataCommand {
  data::GenerateOptions options;
  std::filesystem::path out;  // empty: standard output
  bool json = false;          // of the summary; the instances are JSON in any case
};

void run(const GenerateDataCommand& command) {
  const data::GenerateOptions& options = command.options;
  data::check_options(options);
  const data::Task& task = data::find_task(options.task);
  if (!command.out.empty()) check_output_file(command.out);
  std::optional<data::Haystack> haystack;
  if (!options.haystack.empty()) haystack.emplace(options.haystack);
  const data::TaskRequest request = data::request_of(options, haystack ? &*haystack : nullptr);
  const auto generate = [&](const auto& write) { data::generate(task, request, options.count, write); };
  if (command.out.empty()) return generate([](std::string_view line) { fmt::print("{}", line); });
  write_file_atomic(command.out, [&](FileWriter& file) { generate([&](std::string_view line) { file.write(line); }); });
  const std::string file = command.out.string();
  const nlohmann::json summary = {{"file", file}, {"task", task.name}, {"instances", options.count}};
  const std::string count = counted(options.count, "instance");
  fmt::print(summary_stream(command.out), "{}",
             command.json ? to_line(summary) : fmt::format("{}: {} of {}\n", one_line(file), count, task.name));
}

void add_generated_task(CLI::App& generate, const data::Task& task) {
  auto command = std::make_shared<GenerateDataCommand>();
  data::GenerateOptions& options = command->options;
  options.task = task.name;
  options.length = task.default_length;
  auto* sub = generate.add_subcommand(task.name, summary_of(task));
  add_number(*sub, "--length", options.length,
             "Maximum number of tokens of a prompt; of the byte tokenizer where it is text");
  add_number(*sub, "--count", options.count, "Number of instances");
  add_number(*sub, "--seed", options.seed, "Seed of the instances");
  if (task.takes_depth) {
    add_number(*sub, "--depth", options.depth,
               "Position of the hidden item, 0 (first) to 1 (last) (default: anywhere)");
  }
  add_task_options(*sub, task, options.settings, options.haystack);
  sub->add_option("--out", command->out, "File to write (default: standard output)")->type_name("FILE");
  add_json_option(*sub, command->json);
  sub->footer("tamis data generate " + task.name + example_haystack(task) + " --length " +
              std::to_string(task.default_length) + " --count 100 --out " + task.name + ".jsonl");
  sub->callback([command] { run(*command); });
}

void add_data_generate(CLI::App& data) {
  auto* generate = data.add_subcommand("generate", "Write instances of a synthetic task as JSON Lines.");
  generate->require_subcommand(1);
  for (const data::Task& task : data::tasks()) add_generated_task(*generate, task);
  refuse_other_names(*generate, "task", "task");
  generate->footer("tamis data generate passkey --length 4096 --depth 0.5 --count 100 --out passkey.jsonl");
}

}  // namespace

void add_data(CLI::App& app) {
  auto* data = app.add_subcommand("data", "Make data: prepare texts for training, generate synthetic tasks.");
  data->require_subcommand(1);
  add_data_generate(*data);
  add_data_prepare(*data);
  add_train_tokenizer(*data);
  refuse_other_names(*data, "data command");
  data->footer("tamis data prepare books/ --out corpus\ntamis data generate needle --length 1024 --count 3");
}

}  // namespace tamis::cli
