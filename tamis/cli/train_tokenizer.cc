#include <fmt/format.h>

#include <algorithm>
#include <condition_variable>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/output_file.h"
#include "tamis/base/terminal.h"
#include "tamis/base/utf8.h"
#include "tamis/cli/common.h"
#include "tamis/cli/tokenizer.h"
#include "tamis/cli/values.h"
#include "tamis/text/huggingface_tokenizer.h"

namespace tamis::cli {
namespace {

namespace fs = std::filesystem;

struct TrainTokenizerCommand {
  std::vector<fs::path> inputs;  // files and folders
  fs::path out = "tokenizer.json";
  text::TokenizerTraining training;
  bool json = false;
};

constexpr size_t kPartBytes = 256 << 10;

/// The files among `inputs`, and all files in the folders among them, by name.
std::vector<fs::path> files_of(const std::vector<fs::path>& inputs) {
  std::vector<fs::path> files;
  for (const fs::path& input : inputs) {
    std::error_code missing;
    if (!fs::is_directory(input, missing)) {
      files.push_back(input);
      continue;
    }
    std::vector<fs::path> inside;
    std::error_code error;
    for (fs::recursive_directory_iterator each(input, error), end; !error && each != end; each.increment(error)) {
      if (each->is_regular_file(missing)) inside.push_back(each->path());
    }
    if (error) fail(ExitCode::kInput, "{}: cannot be read: {}", input.string(), error.message());
    if (inside.empty()) fail(ExitCode::kInput, "{}: expected a folder with text files, but it has no files", input.string());
    std::sort(inside.begin(), inside.end());
    files.insert(files.end(), inside.begin(), inside.end());
  }
  return files;
}

/// Reads files in parts that end with a line; a longer line is cut between two characters.
class TextParts {
 public:
  explicit TextParts(std::vector<fs::path> files) : files_(std::move(files)) {
    for (const fs::path& file : files_) {
      std::error_code missing;  // then opening it fails
      const auto bytes = fs::file_size(file, missing);
      if (!missing) total_ += static_cast<double>(bytes);
    }
  }

  /// Empty at the end; valid until the next call.
  std::string_view next() {
    while (rest_.empty()) {
      if (next_file_ == files_.size()) return {};
      file_.emplace(files_[next_file_++]);
      rest_ = file_->text();
    }
    const std::string_view part = rest_.substr(0, end_of_part());
    rest_.remove_prefix(part.size());
    done_ += static_cast<double>(part.size());
    return part;
  }

  double done() const { return done_; }
  double total() const { return total_; }

 private:
  size_t end_of_part() const {
    if (rest_.size() <= kPartBytes) return rest_.size();
    if (const size_t line = rest_.rfind('\n', kPartBytes); line != rest_.npos) return line + 1;
    size_t end = kPartBytes;
    while (end > kPartBytes - 3 && (static_cast<unsigned char>(rest_[end]) & 0xc0) == 0x80) --end;
    return end;
  }

  std::vector<fs::path> files_;
  size_t next_file_ = 0;
  std::optional<MappedFile> file_;
  std::string_view rest_;
  double done_ = 0;
  double total_ = 0;
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
    line_.update(fmt::format("reading {} {:3.0f}%", progress_bar(done, total), 100 * done / total));
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
  std::mutex mutex_;
  std::condition_variable end_;
  bool ended_ = false;
  std::thread clock_;
};

void run(const TrainTokenizerCommand& command) {
  check_output_file(command.out);
  const std::vector<fs::path> files = files_of(command.inputs);
  TextParts parts(files);
  std::string contents;
  const double begun = now_seconds();
  {
    TrainingProgress progress;
    text::TokenizerTraining training = command.training;
    training.merging = [&] { progress.merge(); };
    contents = text::train_tokenizer(training, [&] {
      const std::string_view part = parts.next();
      if (!part.empty()) progress.read(parts.done(), parts.total());
      return part;
    });
  }
  if (parts.done() == 0) fail(ExitCode::kInput, "{}: is empty; expected text", files.front().string());
  write_file_atomic(command.out, contents);
  const int64_t tokens = text::load_tokenizer(command.out)->vocab_size();
  const nlohmann::json summary = {{"file", command.out.string()},
                                  {"vocab_size", tokens},
                                  {"files", files.size()},
                                  {"bytes", static_cast<int64_t>(parts.done())},
                                  {"seconds", now_seconds() - begun}};
  const std::string fewer =
      tokens < command.training.vocab_size ? "; the text has no more pairs of tokens to merge" : "";
  fmt::print(summary_stream(command.out), "{}",
             command.json ? to_line(summary)
                          : fmt::format("{}: {} tokens, trained on {} in {}{}\n", command.out.string(), tokens,
                                        format_bytes(parts.done()), format_duration(now_seconds() - begun), fewer));
}

}  // namespace

void add_train_tokenizer(CLI::App& data) {
  auto command = std::make_shared<TrainTokenizerCommand>();
  auto* sub = data.add_subcommand("train-tokenizer", "Train a byte-level BPE tokenizer on text files.");
  sub->add_option("files", command->inputs, "Text files, and folders of text files")->type_name("FILE")->required();
  text::TokenizerTraining& training = command->training;
  add_number(*sub, "--vocab", training.vocab_size, "Tokens at most: 256 bytes, <|endoftext|> and merges",
             whole(257, 1 << 20));
  add_number(*sub, "--min-frequency", training.min_frequency, "Merge only pairs of tokens that occur this often",
             whole(1));
  add_number(*sub, "--threads", training.threads, "Threads to compute with; 0: one per core", whole(0, 4096));
  sub->add_option("--out", command->out, "File to write")->type_name("FILE")->capture_default_str();
  add_json_option(*sub, command->json);
  sub->footer("tamis data train-tokenizer books/ notes.txt --vocab 4096 --out tokenizer.json");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
