#include "tamis/commands/options.h"

#include <array>
#include <filesystem>
#include <set>

#include "tamis/base/error.h"
#include "tamis/base/names.h"

namespace tamis::commands {
namespace {

void check(const RunOptions& options) {
  constexpr int64_t kMostThreads = 4096;
  if (options.threads < 0 || options.threads > kMostThreads) {
    fail(ExitCode::kUsage, "--threads must be in 0..{}, but is {}", kMostThreads, options.threads);
  }
  static const std::array<std::string, 2> kDevices = {"cpu", "cuda"};
  if (options.device == kDevices[0] || options.device == kDevices[1]) return;
  throw Error(ExitCode::kUsage, unknown_name("device", options.device, kDevices));
}

void check(const TrainCommand& command) {
  check(command.run);
  train::check_options(command.options);
}

void check(const TaskEvalCommand& command) {
  check(command.run);
  eval::check_options(command.options);
}

void check(const LossCommand& command) {
  check(command.run);
  eval::check_options(command.options);
}

void check(const ScoreCommand& command) {
  if (command.text.empty() == command.ids.empty()) {
    fail(ExitCode::kUsage, "score: expected either a text file or --ids FILE");
  }
  check(command.run);
}

void check(const GenerateCommand& command) {
  check(command.run);
  infer::check_options(command.options);
  infer::check_prompt(command.prompt);
}

void check(const InspectCommand& command) {
  check(command.run);
  if (command.options.checkpoint.empty() == (command.psi == 0)) {
    fail(ExitCode::kUsage,
         "inspect: expected a checkpoint, a recipe or --psi, but got {}; try: tamis inspect runs/demo",
         command.psi == 0 ? "neither" : "both");
  }
  report::check_options(command.options.map);
  if (command.options.map.file.empty() && !command.options.map.tiles.empty()) {
    fail(ExitCode::kUsage, "inspect: --tile selects maps for a picture; name it with --map FILE.svg");
  }
  if (!command.options.map.file.empty() && command.text_file.empty()) {
    fail(ExitCode::kUsage, "inspect: --map draws the maps of a text; give one with --text FILE, - for standard input");
  }
  const bool untrained = command.psi > 0 || command.of_recipe();
  if (untrained && !(command.options.model_changes.empty() && command.text_file.empty())) {
    fail(ExitCode::kUsage, "inspect: {} needs a checkpoint; {} describes a model that is not trained yet",
         command.text_file.empty() ? "--set-model" : "--text",
         command.psi > 0 ? "--psi" : command.options.checkpoint.string());
  }
  for (const std::string& assignment : command.overrides) train::split_override(assignment);
  if (!command.overrides.empty() && !command.of_recipe()) {
    fail(ExitCode::kUsage, "inspect: --set changes a key of a recipe, FILE.toml; use --set-model for a checkpoint");
  }
}

void check(const ReportCommand& command) {
  check(command.run);
  std::set<std::filesystem::path> named;
  for (const std::filesystem::path& run : command.options.runs) {
    if (named.insert(run.lexically_normal()).second) continue;
    fail(ExitCode::kUsage, "report: {} is named twice; name each run once", run.string());
  }
}

void check(const GenerateDataCommand& command) {
  data::check_options(command.options);
}

void check(const BenchCommand& command) {
  std::visit([](const auto& bench) { bench::check_options(bench); }, command.bench);
}

void check(const ShootoutCommand& command) {
  check(command.run);
  shootout::check_options(command.options);
}

}  // namespace

void check_options(const Command& command) {
  std::visit([](const auto& each) { check(each); }, command);
}

}  // namespace tamis::commands
