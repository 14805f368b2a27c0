#include "tamis/cli/data_prepare.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>
#include <string>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/base/terminal.h"
#include "tamis/cli/common.h"
#include "tamis/cli/values.h"
#include "tamis/data/prepare.h"
#include "tamis/train/data_set.h"

namespace tamis::cli {
namespace {

struct PrepareCommand {
  data::PrepareOptions options;
  std::string tokenizer = "byte";
  std::string on_error = "skip";
  bool json = false;
};

template <size_t N>
void check_choice(const char* kind, const std::string& value, const std::array<std::string, N>& known) {
  for (const std::string& each : known) {
    if (value == each) return;
  }
  throw Error(ExitCode::kUsage, unknown_name(kind, value, known));
}

void check(const PrepareCommand& command) {
  check_choice("format", command.options.format, std::array<std::string, 4>{"auto", "text", "jsonl", "parquet"});
  check_choice("--on-error", command.on_error, std::array<std::string, 2>{"skip", "fail"});
}

std::string split_line(const nlohmann::json& split, const char* name) {
  return fmt::format("  {}: {}, {}, {}\n", name, counted(split["documents"], "document"),
                     counted(split["tokens"], "token"), counted(split["shards"], "shard"));
}

std::string to_text(const nlohmann::json& result) {
  const nlohmann::json& records = result["records"];
  const double seconds = result["seconds"];
  std::string text = fmt::format(
      "{}: {}\n", one_line(result["corpus"].get<std::string>()),
      result["complete_before"] == true
          ? std::string("complete already; nothing was done")
          : fmt::format("prepared from {} in {}", counted(result["files"], "file"), format_duration(seconds)));
  text += split_line(result["training"], "training");
  if (result["validation"]["documents"] != 0) text += split_line(result["validation"], "validation");
  if (result["also_held_out"] != 0) {
    text += fmt::format("  held out only: {}, named for training too\n", counted(result["also_held_out"], "file"));
  }
  if (records["empty"] != 0)
    text += fmt::format("  left out: {} without text\n", counted(records["empty"], "document"));
  if (records["corrupt"] != 0) {
    text += fmt::format("  left out: {}, such as\n", counted(records["corrupt"], "corrupt record"));
    for (size_t i = 0; i < std::min<size_t>(records["examples"].size(), 3); ++i) {
      text += "    " + one_line(records["examples"][i].get<std::string>()) + "\n";
    }
  }
  return text;
}

void run(PrepareCommand& command) {
  check(command);
  command.options.skip_corrupt = command.on_error == "skip";
  const auto tokenizer = train::open_tokenizer(command.tokenizer);
  nlohmann::json result;
  {
    ProgressLine line(stderr);
    const double begun = now_seconds();
    int64_t first_bytes = -1;
    const auto show = [&](const data::PrepareProgress& at) {
      if (first_bytes < 0) first_bytes = at.bytes;
      if (now_seconds() - begun < 1) return;  // short work needs no progress
      const double done = static_cast<double>(at.bytes),
                   total = static_cast<double>(std::max<int64_t>(at.total_bytes, 1));
      const double passed = now_seconds() - begun, now_done = done - static_cast<double>(first_bytes);
      line.update(
          fmt::format("prepare {} {:3.0f}%  {} documents  {} tokens{}", progress_bar(done, total), 100 * done / total,
                      format_count(static_cast<double>(at.documents)), format_count(static_cast<double>(at.tokens)),
                      now_done > 0 ? "  " + format_duration(passed * (total - done) / now_done) + " left" : ""));
    };
    result = data::prepare(command.options, *tokenizer, show);
    line.clear();
  }
  fmt::print("{}", command.json ? to_line(result) : to_text(result));
}

}  // namespace

void add_data_prepare(CLI::App& data) {
  auto command = std::make_shared<PrepareCommand>();
  data::PrepareOptions& options = command->options;
  auto* sub = data.add_subcommand(
      "prepare", "Tokenize text files, JSONL (.gz, .zst), Parquet, folders and patterns into a corpus to train from.");
  sub->add_option("files", options.inputs,
                  "Files, folders or patterns such as 'data/*.jsonl.zst'; - reads standard input")
      ->required()
      ->type_name("FILES");
  sub->add_option("--out", options.out, "Directory of the corpus; a preparation that was interrupted is completed")
      ->required()
      ->type_name("DIR");
  sub->add_option("--tokenizer", command->tokenizer, "byte, or a tokenizer.json")
      ->type_name("byte|FILE")
      ->capture_default_str();
  sub->add_option("--format", options.format,
                  "Of the files: text, jsonl or parquet; auto: by their names, standard input is text")
      ->type_name("auto|text|jsonl|parquet")
      ->capture_default_str();
  sub->add_option("--field", options.field, "The field of a JSONL record, or the column of Parquet, with the text")
      ->type_name("NAME")
      ->capture_default_str();
  sub->add_option("--validation", options.validation,
                  "Files, folders or patterns to hold out for validation, also of FILES")
      ->type_name("FILES");
  add_number(*sub, "--validation-fraction", options.validation_fraction,
             "Fraction of the documents to hold out for validation, evenly spaced", {0.0, 0.9});
  add_number(*sub, "--shard-tokens", options.shard_tokens,
             "A shard ends with the document that reaches this many tokens", whole(1));
  add_number(*sub, "--max-document", options.most_bytes,
             "Maximum number of bytes of a JSONL record; a longer one is corrupt", whole(64, int64_t{1} << 30));
  sub->add_option("--on-error", command->on_error, "skip: count corrupt records and leave them out; fail: stop")
      ->type_name("skip|fail")
      ->capture_default_str();
  add_number(*sub, "--save-seconds", options.save_seconds,
             "Seconds between the points from which an interrupted preparation can continue", {0.0, 1e6});
  add_number(*sub, "--threads", options.threads, "Threads to tokenize with; 0: one per core", whole(0, 4096));
  add_json_option(*sub, command->json);
  sub->footer(
      "tamis data prepare books/ --out corpus --validation-fraction 0.05\n"
      "tamis data prepare 'web/*.jsonl.zst' --field text --tokenizer tokenizer.json --out corpus");
  sub->callback([command] { run(*command); });
}

}  // namespace tamis::cli
