#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/base/output_file.h"
#include "tamis/base/terminal.h"
#include "tamis/cli/common.h"
#include "tamis/cli/tokenizer.h"
#include "tamis/cli/values.h"
#include "tamis/data/training_text.h"
#include "tamis/text/huggingface_tokenizer.h"

namespace tamis::cli {
namespace {

struct TrainTokenizerCommand {
  std::vector<std::string> inputs;  // files, folders and patterns
  std::string field = "text";       // of a JSONL record
  std::filesystem::path out = "tokenizer.json";
  text::TokenizerTraining training;
  bool json = false;
};

/// Shows on stderr how far a training is: the share of the text that is read, then the time that the merges take, of
/// which the library does not report progress.
class TrainingProgress {
 public:
  ~TrainingProgress() {
    {
      const std::scoped_lock lock(mutex_);
      ended_ = true;
    }
    end_.notify_all();
    if (clock_.joinable()) clock_.join();
    line_.clear();
  }

  void read(double done, double total) {
    const std::scoped_lock lock(mutex_);
    if (now_seconds() - begun_ < 1) return;  // short work needs no progress
    line_.update(fmt::format("reading {} {:3.0f}%", progress_bar(done, total), 100 * done / std::max(total, 1.0)));
  }

  void merge() {
    const std::scoped_lock lock(mutex_);
    if (clock_.joinable()) return;
    clock_ = std::thread([this, begun = now_seconds()] {
      std::unique_lock lock(mutex_);
      while (!end_.wait_for(lock, std::chrono::milliseconds(500), [this] { return ended_; })) {
        line_.update("merging pairs of tokens, " + format_duration(now_seconds() - begun));
      }
    });
  }

 private:
  ProgressLine line_;
  const double begun_ = now_seconds();
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::thread clock_;
};

std::string to_text(const nlohmann::json& summary, const TrainTokenizerCommand& command, const std::string& problem) {
  const int64_t tokens = summary["vocab_size"];
  std::string text = fmt::format("{}: {} tokens, trained on {} in {}{}\n", one_line(command.out.string()), tokens,
                                 format_bytes(summary["bytes"]), format_duration(summary["seconds"]),
                                 tokens < command.training.vocab_size ? "; no other pair is frequent enough" : "");
  if (summary["left_out"] != 0) {
    text +=
        fmt::format("  left out: {}, such as {}\n", counted(summary["left_out"], "corrupt record"), one_line(problem));
  }
  if (summary["cut_bytes"] != 0) {
    text += fmt::format("  cut into pieces: {} in words of more than 4096 bytes\n", format_bytes(summary["cut_bytes"]));
  }
  return text;
}

void run(const TrainTokenizerCommand& command) {
  check_output_file(command.out);
  data::TrainingText source(command.inputs, command.field);
  const double begun = now_seconds();
  text::TrainedTokenizer trained;
  {
    TrainingProgress progress;
    text::TokenizerTraining training = command.training;
    training.merging = [&] { progress.merge(); };
    trained = text::train_tokenizer(training, [&] {
      progress.read(static_cast<double>(source.read_bytes()), static_cast<double>(source.total_bytes()));
      return source.next();
    });
  }
  write_file_atomic(command.out, trained.json);
  const nlohmann::json summary = {
      {"file", command.out.string()},    {"vocab_size", parse_json(trained.json, "tokenizer")["model"]["vocab"].size()},
      {"files", source.files()},         {"bytes", source.text_bytes()},
      {"left_out", source.left_out()},   {"cut_bytes", trained.cut_bytes},
      {"seconds", now_seconds() - begun}};
  fmt::print(summary_stream(command.out), "{}",
             command.json ? to_line(summary) : to_text(summary, command, source.first_problem()));
}

}  // namespace

void add_train_tokenizer(CLI::App& data) {
  auto command = std::make_shared<TrainTokenizerCommand>();
  auto* sub = data.add_subcommand("train-tokenizer",
                                  "Train a byte-level BPE tokenizer on text files, JSONL (.gz, .zst) or Parquet.");
  sub->add_option("files", command->inputs,
                  "Files, folders or patterns such as 'data/*.jsonl.zst'; - reads standard input")
      ->type_name("FILES")
      ->required();
  text::TokenizerTraining& training = command->training;
  add_number(*sub, "--vocab", training.vocab_size, "Maximum number of tokens: 256 bytes, <|endoftext|> and merges",
             whole(257, 1 << 20));
  add_number(*sub, "--min-frequency", training.min_frequency, "Merge only pairs of tokens that occur this often",
             whole(1));
  add_number(*sub, "--threads", training.threads, "Threads to compute with; 0: one per core", whole(0, 4096));
  sub->add_option("--field", command->field, "The field of a JSONL record, or the column of Parquet, with the text")
      ->type_name("NAME")
      ->capture_default_str();
  sub->add_option("--out", command->out, "File to write")->type_name("FILE")->capture_default_str();
  add_json_option(*sub, command->json);
  sub->footer("tamis data train-tokenizer books/ notes.txt --vocab 4096 --out tokenizer.json");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
