#include "tamis/bench/bench.h"

#include <fmt/format.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/terminal.h"
#include "tamis/bench/network.h"
#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/values.h"

namespace tamis::cli {
namespace {

/// One bench as a subcommand: its options, and the small values that --quick gives to those that are not set.
template <typename Bench>
class Subcommand : public std::enable_shared_from_this<Subcommand<Bench>> {
 public:
  Bench bench;

  Subcommand(CLI::App& parent, const std::string& name, const std::string& help)
      : app_(*parent.add_subcommand(name, help)) {}

  template <typename T>
  void add_number(const std::string& name, T& value, const std::type_identity_t<T>& quick_value,
                  const std::type_identity_t<Limits<T>>& limits, const std::string& help) {
    make_quick(cli::add_number(app_, name, value, help, limits), value, quick_value);
  }

  template <typename T>
  void add_numbers(const std::string& name, std::vector<T>& values,
                   const std::type_identity_t<std::vector<T>>& quick_values,
                   const std::type_identity_t<Limits<T>>& limits, const std::string& help) {
    make_quick(cli::add_numbers(app_, name, values, help, limits), values, quick_values);
  }

  void add_names(const std::string& name, std::vector<std::string>& names, const std::string& help) {
    cli::add_names(app_, name, names, help);
  }

  void add_path(const std::string& name, std::filesystem::path& value, const std::string& file_or_directory,
                const std::string& help) {
    app_.add_option(name, value, help)->type_name(file_or_directory);
  }

  /// The options that all benches have; `example` ends the help.
  void finish(const std::string& example) {
    constexpr int64_t kMostThreads = 4096;
    add_names("--dtypes", bench.dtypes, "float32, bfloat16 (decode: int8 too), separated by commas");
    add_numbers("--threads", bench.threads, bench.threads, whole(0, kMostThreads),
                "Numbers of threads, separated by commas; 0: one per core");
    add_number("--repeat", bench.measure.repeat, 2, whole(1), "Minimum number of measured calls");
    add_number("--seconds", bench.measure.seconds, 0.0, {0.0, 1e6}, "Minimum time of measured calls");
    app_.add_flag("--quick", quick_, "Small sizes, to check that it runs");
    add_json_option(app_, json_);
    app_.footer("tamis bench " + example);
    app_.callback([self = this->shared_from_this()] { self->run(); });
  }

 private:
  template <typename Value>
  void make_quick(const CLI::Option* option, Value& value, const Value& quick_value) {
    make_quick_.push_back([&value, option, quick_value] {
      if (option->count() == 0) value = quick_value;
    });
  }

  void run() {
    if (quick_) {
      for (const auto& make : make_quick_) make();
      bench.peaks = {.matmul_size = 64, .seconds = 0, .read_bytes = 1 << 16};
    }
    const bench::Report report = bench::run(bench, stderr);
    fmt::print("{}", json_ ? to_line(bench::to_json(report)) : bench::to_table(report, use_colour(stdout)));
  }

  CLI::App& app_;
  bool quick_ = false, json_ = false;
  std::vector<std::function<void()>> make_quick_;
};

template <typename Bench>
void add_model_options(Subcommand<Bench>& command) {
  command.add_number("--psi", command.bench.psi, 4, whole(1, 64), "psi of the model");
  command.add_number("--vocab", command.bench.vocab, 64, whole(1, 1 << 24), "Vocabulary size of the model");
}

template <typename Bench>
void add_windows(Subcommand<Bench>& command, const std::string& help = "initial, infinite, separated by commas") {
  command.add_names("--windows", command.bench.windows, help);
}

/// What the ModelBenches have besides the sizes of a fresh model.
template <typename Bench>
void add_checkpoint(Subcommand<Bench>& command) {
  add_windows(command, "initial (default), infinite; with --checkpoint trained, expanded (both); separated by commas");
  command.add_path("--checkpoint", command.bench.checkpoint, "DIR",
                   "A trained Multiscreen, or its run, instead of a fresh one");
  command.add_path("--text", command.bench.text, "FILE",
                   "File for the checkpoint to read repeatedly, - reads standard input; default: random tokens");
}

void add_train_bench(CLI::App& app) {
  const auto command = std::make_shared<Subcommand<bench::TrainBench>>(
      app, "train", "Whole training steps on random tokens: forward, backward, optimizer.");
  bench::TrainBench& bench = command->bench;
  add_model_options(*command);
  command->add_numbers("--lengths", bench.lengths, {48}, whole(1), "Tokens of a sequence, separated by commas");
  command->add_number("--batch-tokens", bench.batch_tokens, 96, whole(0),
                      "Tokens of a step, rounded down to whole sequences; 0: 2048, or one sequence where that is more");
  command->add_number("--recompute", bench.recompute, bench.recompute, {0.0, 1.0},
                      "Share of the layers that recompute their activations in the backward pass");
  command->finish("train --lengths 512,4096 --dtypes bfloat16 --threads 1,2");
}

void add_forward_bench(CLI::App& app) {
  const auto command = std::make_shared<Subcommand<bench::ForwardBench>>(
      app, "forward", "A long text through the model at once, without gradients.");
  add_model_options(*command);
  command->add_numbers("--lengths", command->bench.lengths, {48}, whole(1), "Tokens, separated by commas");
  add_checkpoint(*command);
  command->finish(
      "forward --lengths 4096,16384,65536 --windows initial,infinite\n"
      "tamis bench forward --checkpoint runs/demo --text book.txt --lengths 16384");
}

void add_decode_bench(CLI::App& app) {
  const auto command = std::make_shared<Subcommand<bench::DecodeBench>>(
      app, "decode", "Token after token, the likeliest each time, after a context.");
  bench::DecodeBench& bench = command->bench;
  add_model_options(*command);
  command->add_numbers("--depths", bench.depths, {0, 40}, whole(0), "Tokens of the context, separated by commas");
  command->add_numbers("--batch", bench.batches, {1}, whole(1, 1 << 16),
                       "Sequences decoded together, separated by commas");
  command->add_number("--tokens", bench.tokens, 4, whole(1), "Tokens decoded in a measured call");
  add_checkpoint(*command);
  command->finish(
      "decode --depths 0,1024,16384 --batch 1,8\n"
      "tamis bench decode --checkpoint runs/demo --text book.txt --depths 1024,16384");
}

struct NetworkCommand {
  bench::NetworkBench bench;
  ProcessOptions processes;
  bool json = false;
};

void run(const NetworkCommand& command) {
  const auto group = meet(command.processes);
  if (!group) {
    fail(ExitCode::kUsage,
         "bench network measures what several processes send each other, but this is the only one; start it with "
         "torchrun, srun or mpirun");
  }
  const bench::NetworkSpeed speed = bench::measure_network(command.bench, *group);
  if (group->rank() > 0) return;
  fmt::print("{}", command.json ? to_line(bench::to_json(speed)) : bench::to_text(speed));
}

void add_network_bench(CLI::App& app) {
  const auto command = std::make_shared<NetworkCommand>();
  auto* sub = app.add_subcommand("network", "What several processes send each other, for tamis plan --processes.");
  constexpr int64_t kMostMegabytes = 1'000'000;
  add_number(*sub, "--megabytes", command->bench.megabytes, "MB that each process divides among all",
             whole(1, kMostMegabytes));
  add_number(*sub, "--repeat", command->bench.measure.repeat, "Minimum number of measured exchanges", whole(1));
  add_number(*sub, "--seconds", command->bench.measure.seconds, "Time of measured exchanges", {0.0, 1e6});
  add_json_option(*sub, command->json);
  add_process_options(*sub, command->processes);
  sub->footer(
      "torchrun --nproc-per-node 2 --no-python tamis bench network\n"
      "srun --nodes 8 --ntasks-per-node 2 tamis bench network");
  sub->callback([command] { run(*command); });
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Measure how fast this machine trains, reads, decodes, and its network.");
  bench->require_subcommand(1);
  add_train_bench(*bench);
  add_forward_bench(*bench);
  add_decode_bench(*bench);
  add_network_bench(*bench);
  refuse_other_names(*bench, "bench", "bench");
  bench->footer("tamis bench train --quick");
}

}  // namespace tamis::cli
