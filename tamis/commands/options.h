#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "tamis/bench/options.h"
#include "tamis/data/options.h"
#include "tamis/eval/options.h"
#include "tamis/infer/options.h"
#include "tamis/report/options.h"
#include "tamis/shootout/options.h"
#include "tamis/train/options.h"

namespace tamis::commands {

/// What every command that runs a model takes.
struct RunOptions {
  int64_t threads = 0;                          // of ATen; 0: one per core
  std::string device = "cpu";                   // cpu or cuda
  std::vector<std::string> model_changes = {};  // KEY=VALUE in the place of what config.json says
};

struct TrainCommand {
  train::TrainOptions options;
  RunOptions run;
  bool json = false;
};

struct TaskEvalCommand {
  std::filesystem::path directory;  // checkpoint or run directory
  eval::TaskEvalOptions options;
  RunOptions run;
  bool json = false;
};

struct LossCommand {
  std::filesystem::path directory;  // checkpoint or run directory
  std::filesystem::path file;       // "-" reads standard input
  eval::LossEvalOptions options;
  RunOptions run;
  bool json = false;
};

struct ScoreCommand {
  std::filesystem::path checkpoint;  // or run directory
  std::filesystem::path text;        // one of these two; "-" reads standard input
  std::filesystem::path ids;
  infer::ScoreOptions options;
  RunOptions run;
  bool json = false;
};

struct GenerateCommand {
  std::filesystem::path checkpoint;  // or run directory
  std::string prompt;                // "-" reads standard input
  infer::GenerateOptions options;
  RunOptions run;
  bool json = false;
};

struct InspectCommand {
  report::InspectOptions options;      // checkpoint: also a recipe, FILE.toml
  std::vector<std::string> overrides;  // of a recipe: `train.length=512`
  int64_t psi = 0;                     // > 0: no checkpoint
  int64_t vocab_size = 257;
  std::string text_file;       // "-" reads standard input
  std::filesystem::path html;  // empty: print what was found
  RunOptions run;
  bool json = false;

  bool of_recipe() const { return options.checkpoint.extension() == ".toml"; }
};

struct ReportCommand {
  report::ReportOptions options;
  std::string text_file;  // "-" reads standard input
  RunOptions run;
  bool json = false;
};

struct GenerateDataCommand {
  data::GenerateOptions options;
  std::filesystem::path out;  // empty: standard output
  bool json = false;          // what is said of a file; the instances are JSON in any case
};

struct BenchCommand {
  std::variant<bench::TrainBench, bench::ForwardBench, bench::DecodeBench, bench::OpsBench, bench::AttentionBench,
               bench::HeadBench>
      bench;
  bool json = false;
};

struct ShootoutCommand {
  shootout::ShootoutOptions options;
  RunOptions run;
};

/// Any command with its options, as the command line gives them.
using Command = std::variant<TrainCommand, TaskEvalCommand, LossCommand, ScoreCommand, GenerateCommand, InspectCommand,
                             ReportCommand, GenerateDataCommand, BenchCommand, ShootoutCommand>;

/// Throws ExitCode::kUsage when the options cannot be, whatever is on the disk.
void check_options(const Command& command);

}  // namespace tamis::commands
