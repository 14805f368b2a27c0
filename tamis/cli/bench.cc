#include <filesystem>
#include <functional>
#include <memory>

#include "tamis/cli/commands.h"
#include "tamis/cli/common.h"
#include "tamis/cli/library.h"
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
  void add(const std::string& name, T& value, const T& quick_value, const Read<T>& read, const std::string& help) {
    const CLI::Option* option = add_value(app_, name, value, read, help);
    quick_values_.push_back([&value, option, quick_value] {
      if (option->count() == 0) value = quick_value;
    });
  }

  void add_path(const std::string& name, std::filesystem::path& value, const std::string& file_or_directory,
                const std::string& help) {
    app_.add_option(name, value, help)->type_name(file_or_directory);
  }

  void add_flag_off(const std::string& name, bool& value, const std::string& help) {
    app_.add_flag_callback(
        name, [&value] { value = false; }, help);
  }

  /// The options that all have; `example` ends the help.
  void finish(const std::string& example) {
    constexpr int64_t kMostThreads = 4096;
    add("--dtypes", bench.dtypes, bench.dtypes, list(any_text()),
        "float32, bfloat16 (decode: int8 too), separated by commas");
    add("--threads", bench.threads, bench.threads, list(whole(0, kMostThreads)),
        "Numbers of threads, separated by commas; 0: one per core");
    add("--repeat", bench.measure.repeat, int64_t{2}, whole(1), "Measure at least so many calls");
    add("--seconds", bench.measure.seconds, 0.0, number(0.0, 1e6), "Measure calls for at least so long");
    app_.add_flag("--quick", quick_, "Small sizes: only to see whether it works");
    add_json_option(app_, json_);
    app_.footer("tamis bench " + example);
    app_.callback([self = this->shared_from_this()] { self->run(); });
  }

 private:
  void run() {
    if (quick_) {
      for (const auto& take : quick_values_) take();
      bench.peaks = {.matmul_size = 64, .seconds = 0, .read_bytes = 1 << 16};
    }
    cli::run(commands::BenchCommand{.bench = bench, .json = json_});
  }

  CLI::App& app_;
  bool quick_ = false, json_ = false;
  std::vector<std::function<void()>> quick_values_;
};

using Integers = std::vector<int64_t>;

template <typename Bench>
void add_model_options(Subcommand<Bench>& command) {
  command.add("--psi", command.bench.psi, int64_t{4}, whole(1, 64), "Psi of the model");
  command.add("--vocab", command.bench.vocab, int64_t{64}, whole(1, 1 << 24), "Vocabulary of the model");
}

template <typename Bench>
void add_windows(Subcommand<Bench>& command, const std::string& help = "initial, infinite, separated by commas") {
  command.add("--windows", command.bench.windows, command.bench.windows, list(any_text()), help);
}

/// What the ModelBenches have beside the sizes of a fresh model.
template <typename Bench>
void add_checkpoint(Subcommand<Bench>& command) {
  add_windows(command, "initial (default), infinite; with --checkpoint trained, expanded (both); separated by commas");
  command.add_path("--checkpoint", command.bench.checkpoint, "DIR",
                   "A trained Multiscreen, or its run, instead of a fresh one");
  command.add_path("--text", command.bench.text, "FILE",
                   "What the checkpoint reads, again and again; default: random tokens");
}

void add_train_bench(CLI::App& app) {
  const auto command = std::make_shared<Subcommand<bench::TrainBench>>(
      app, "train", "Whole training steps on random tokens: forward, backward, optimizer.");
  bench::TrainBench& bench = command->bench;
  add_model_options(*command);
  command->add("--lengths", bench.lengths, Integers{48}, list(whole(1)), "Tokens of a sequence, separated by commas");
  command->add("--batch-tokens", bench.batch_tokens, int64_t{96}, whole(0),
               "Tokens of a step, rounded down to whole sequences; 0: 2048, or one sequence where that is more");
  command->add("--recompute", bench.recompute, bench.recompute, number(0.0, 1.0),
               "Share of the layers that recompute their activations in the backward pass");
  command->finish("train --lengths 512,4096 --dtypes bfloat16 --threads 1,2");
}

void add_forward_bench(CLI::App& app) {
  const auto command = std::make_shared<Subcommand<bench::ForwardBench>>(
      app, "forward", "A long text through the model at once, without gradients.");
  add_model_options(*command);
  command->add("--lengths", command->bench.lengths, Integers{48}, list(whole(1)), "Tokens, separated by commas");
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
  command->add("--depths", bench.depths, Integers{0, 40}, list(whole(0)), "Tokens of the context, separated by commas");
  command->add("--batch", bench.batches, Integers{1}, list(whole(1, 1 << 16)),
               "Sequences decoded together, separated by commas");
  command->add("--tokens", bench.tokens, int64_t{4}, whole(1), "Tokens decoded in a measured call");
  add_checkpoint(*command);
  command->finish(
      "decode --depths 0,1024,16384 --batch 1,8\n"
      "tamis bench decode --checkpoint runs/demo --text book.txt --depths 1024,16384");
}

void add_ops_bench(CLI::App& app) {
  const auto command = std::make_shared<Subcommand<bench::OpsBench>>(
      app, "ops", "The screening operator alone, beside torch's softmax attention.");
  bench::OpsBench& bench = command->bench;
  command->add("--heads", bench.heads, int64_t{2}, whole(1, 1 << 12), "Heads");
  command->add("--key-dim", bench.key_dim, bench.key_dim, whole(2, 1 << 12), "Width of queries and keys");
  command->add("--value-dim", bench.value_dim, bench.value_dim, whole(1, 1 << 12), "Width of values");
  command->add("--lengths", bench.lengths, Integers{48}, list(whole(1)), "Tokens, separated by commas");
  add_windows(*command);
  command->add("--survive", bench.survive, bench.survive, list(number(1e-6, 0.5)),
               "Shares of the visible keys that are accepted, separated by commas");
  command->add_flag_off("--no-peer", bench.peer, "Leave softmax attention out");
  command->finish("ops --lengths 4096 --windows infinite --survive 0.001,0.02,0.1,0.5 --no-peer");
}

void add_attention_bench(CLI::App& app) {
  const auto command = std::make_shared<Subcommand<bench::AttentionBench>>(
      app, "attention",
      "Softmax, windows, entmax, stick-breaking, Sieve, mLSTM alone, beside torch's softmax attention.");
  bench::AttentionBench& bench = command->bench;
  command->add("--operators", bench.operators, bench.operators, list(any_text()),
               "softmax, window, entmax, stick_breaking, sieve, mlstm, separated by commas");
  command->add("--heads", bench.heads, int64_t{2}, whole(1, 1 << 12), "Heads; mLSTM has a quarter of them");
  command->add("--head-dim", bench.head_dim, int64_t{16}, whole(2, 1 << 12), "Width of a head; mLSTM's values: twice");
  command->add("--lengths", bench.lengths, Integers{48}, list(whole(1)), "Tokens, separated by commas");
  command->add("--window", bench.window, int64_t{16}, whole(1), "Keys that a query sees in `window`");
  command->add("--alpha", bench.alpha, bench.alpha, number(1.0, 2.0), "Of entmax and Sieve");
  command->add("--shift", bench.shift, bench.shift, number(-100.0, 100.0),
               "Added to every logit; at -8 stick-breaking looks at every key");
  command->add_flag_off("--no-peer", bench.peer, "Leave softmax attention of torch out");
  command->finish("attention --operators stick_breaking --shift -8 --dtypes float32");
}

void add_head_bench(CLI::App& app) {
  const auto command = std::make_shared<Subcommand<bench::HeadBench>>(
      app, "head", "Vocabulary head and loss, beside the bare matrix products.");
  bench::HeadBench& bench = command->bench;
  command->add("--vocab", bench.vocab, int64_t{100}, whole(1, 1 << 24), "Vocabulary");
  command->add("--tokens", bench.tokens, int64_t{32}, whole(1), "Tokens");
  command->add("--hidden", bench.hidden, int64_t{16}, whole(1, 1 << 16), "Width of the model");
  command->finish("head --vocab 50257 --dtypes float32,bfloat16");
}

}  // namespace

void add_bench(CLI::App& app) {
  auto* bench = app.add_subcommand("bench", "Measure how fast this machine trains, reads, decodes.");
  bench->require_subcommand(1);
  add_train_bench(*bench);
  add_forward_bench(*bench);
  add_decode_bench(*bench);
  add_ops_bench(*bench);
  add_attention_bench(*bench);
  add_head_bench(*bench);
  refuse_other_names(*bench, "bench");
  bench->footer("tamis bench train --quick");
}

}  // namespace tamis::cli
