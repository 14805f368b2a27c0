#include "tamis/models/exchange/convert.h"

#include <fmt/format.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tamis/base/message.h"
#include "tamis/base/names.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/values.h"

namespace tamis::cli {
namespace {

using models::exchange::Converted;

struct ConvertCommand {
  std::filesystem::path source, target;
  models::exchange::ConvertOptions options;
  int64_t shard_megabytes = models::exchange::kShardBytes >> 20;
  bool json = false;
};

void print(const Converted& converted, const std::filesystem::path& target) {
  fmt::print("{} to {}: {} tensors, {} parameters, {:.1f} MB in {}\n", converted.from, converted.to, converted.tensors,
             converted.parameters, static_cast<double>(converted.bytes) / 1e6, one_line(target.string()));
}

void run(const ConvertCommand& command) {
  models::exchange::ConvertOptions options = command.options;
  options.shard_bytes = command.shard_megabytes << 20;
  const Converted converted =
      models::exchange::convert(command.source, command.target, options, progress_with_eta("convert"));
  for (const std::string& note : converted.notes) print_message(stderr, fmt::format("tamis: {}\n", one_line(note)));
  if (!command.json) return print(converted, command.target);
  const nlohmann::json line = {{"from", converted.from},
                               {"to", converted.to},
                               {"target", command.target.string()},
                               {"tensors", converted.tensors},
                               {"parameters", converted.parameters},
                               {"bytes", converted.bytes},
                               {"copied", converted.copied},
                               {"notes", converted.notes}};
  fmt::print("{}", to_line(line));
}

/// `llama|tamis|...` and what each is.
std::string known_formats() {
  std::string names;
  for (const auto* format : models::exchange::formats()) names += (names.empty() ? "" : "|") + format->name();
  return names;
}

}  // namespace

void add_convert(CLI::App& app) {
  auto command = std::make_shared<ConvertCommand>();
  auto* sub = app.add_subcommand("convert", "Translate a model's directory between Tamis and other programs.");
  sub->add_option("source", command->source, "Checkpoint or run directory, or the directory of another program's model")
      ->type_name("DIR")
      ->required();
  sub->add_option("target", command->target, "Directory to write; must not exist")->type_name("DIR")->required();
  sub->add_option("--from", command->options.from, "Format of the source; detected unless given")
      ->type_name(known_formats());
  sub->add_option("--to", command->options.to, "Format to write")->type_name(known_formats())->capture_default_str();
  sub->add_option("--rotary-layout", command->options.format.rotary_layout,
                  "From or to llama: how its files pair the dimensions of a rotary head; default: half")
      ->type_name("half|interleaved");
  sub->add_flag("--wrap-positions", command->options.format.wrap_positions,
                "From multiscreen-pytorch and multiscreen-hf: positions beyond the training length count modulo the "
                "window in MiPE, as there; default: as in the paper");
  add_number(*sub, "--shard-size", command->shard_megabytes, "Write several files when the tensors take more MB",
             whole(1, int64_t{1} << 30));
  add_json_option(*sub, command->json);
  sub->footer("tamis convert runs/transformer transformer-hf --to llama");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
