#include "tamis/commands/options.h"

#include <array>

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
    fail(ExitCode::kUsage, "inspect: expected a checkpoint or --psi, but got {}; try: tamis inspect runs/demo",
         command.psi == 0 ? "neither" : "both");
  }
  if (command.psi > 0 && !(command.options.model_changes.empty() && command.text_file.empty())) {
    fail(ExitCode::kUsage, "inspect: {} wants a checkpoint; --psi counts the parameters of a model that nobody trained",
         command.text_file.empty() ? "--set-model" : "--text");
  }
}

void check(const ReportCommand& command) {
  check(command.run);
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
