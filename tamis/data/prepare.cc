#include "tamis/data/prepare.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <iterator>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "tamis/base/cores.h"
#include "tamis/base/error.h"
#include "tamis/base/files.h"
#include "tamis/base/json.h"
#include "tamis/base/names.h"
#include "tamis/base/terminal.h"
#include "tamis/data/bounded_queue.h"
#include "tamis/data/corpus.h"
#include "tamis/data/records.h"
#include "tamis/data/shard.h"
#include "tamis/data/split_writer.h"
#include "tamis/data/text_files.h"
#include "tamis/text/line_cuts.h"

namespace tamis::data {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Batch = RecordReader::Batch;

constexpr const char* kProgressFile = "progress.json";
constexpr const char* kProgressFormat = "tamis-prepare";
constexpr int64_t kProgressVersion = 1;
constexpr size_t kMostExamples = 10;  // of corrupt records in the manifest

/// Calls `work(i)` for i = 0 .. count - 1 on `threads` threads; rethrows the first exception.
template <typename Work>
void for_each_in_parallel(size_t count, int64_t threads, const Work& work) {
  std::atomic<size_t> next = 0;
  std::atomic<bool> failed = false;
  std::exception_ptr error;
  const auto run = [&] {
    try {
      for (size_t i = next++; i < count && !failed; i = next++) work(i);
    } catch (...) {
      if (!failed.exchange(true)) error = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int64_t i = 1; i < std::min<int64_t>(threads, static_cast<int64_t>(count)); ++i) others.emplace_back(run);
    run();
  }
  if (error) std::rethrow_exception(error);
}

/// Counts of records that hold no document.
struct RecordCounts {
  int64_t empty = 0;
  int64_t corrupt = 0;
  json examples = json::array();  // the first corrupt records, as messages
};

/// Replaces the line of a JSONL record by the text of its field, or makes the record corrupt or empty.
void take_field(Record& record, const std::string& field) {
  const auto corrupt = [&](std::string problem) {
    record.kind = Record::Kind::kCorrupt;
    record.problem = std::move(problem);
    record.text.clear();
  };
  try {
    json object = parse_json(record.text, "record");
    if (!object.is_object()) return corrupt("expected a JSON object, but it is " + shown(object));
    const auto value = object.find(field);
    if (value == object.end()) return corrupt("has no field " + quoted_name(field));
    if (!value->is_string())
      return corrupt(fmt::format("{} must be a text, but is {}", quoted_name(field), shown(*value)));
    record.text = std::move(value->get_ref<std::string&>());
    record.kind = record.text.empty() ? Record::Kind::kEmpty : Record::Kind::kPiece;
  } catch (const Error& error) {
    constexpr std::string_view kPrefix = "record: ";
    corrupt(std::string(error.what()).substr(kPrefix.size()));
  }
}

class Preparation {
 public:
  Preparation(const PrepareOptions& options, const text::Tokenizer& tokenizer,
              const std::function<void(const PrepareProgress&)>& progress)
      : options_(options),
        tokenizer_(tokenizer),
        progress_(progress),
        threads_(options.threads > 0 ? options.threads : usable_cores()),
        digest_(tokenizer.digest()),
        training_(split("training")),
        validation_(split("validation")) {
    check_output();
    find_files();
    for (const InputFile& file : files_) {
      check_column(file);
      total_bytes_ += file.bytes;
    }
    limits_.document_bytes = static_cast<size_t>(options.most_bytes);
    limits_.cut_behind = text::letters_before_cuts(parse_json(tokenizer.to_json(), "tokenizer.json"));
    if (limits_.cut_behind.empty()) limits_.piece_bytes = limits_.document_bytes;
    request_ = request();
  }

  json run() {
    make_directories(options_.out);
    const FileLock lock(options_.out / ".lock");
    if (fs::exists(options_.out / kCorpusManifest)) return complete_before();
    remove_unfinished_writes(options_.out);
    restore();
    write_file_atomic(options_.out / "tokenizer.json", tokenizer_.to_json());
    const double begun = now_seconds();
    save();
    read_all();
    if (training_.tokens() == 0) fail_without_documents();
    training_.finish();
    validation_.finish();
    const Manifest manifest = this->manifest();
    write_file_atomic(options_.out / kCorpusManifest, json_text(to_json(manifest), 2));
    clean_up();
    json result = summary(manifest, false);
    result["seconds"] = now_seconds() - begun;
    return result;
  }

 private:
  SplitWriter split(const char* name) const {
    return {options_.out, name, token_bytes_for(tokenizer_.vocab_size()), digest_, options_.shard_tokens};
  }

  /// A file that is to be held out is no input, though a folder or pattern of the inputs may contain it.
  void find_files() {
    std::vector<InputFile> held_out = find_text_files(options_.validation, options_.format);
    const auto place = [](const InputFile& file) {
      if (file.content) return fs::path("-");
      std::error_code ignored;
      return fs::weakly_canonical(file.path, ignored);
    };
    std::set<fs::path> held_out_places;
    for (const InputFile& file : held_out) held_out_places.insert(place(file));
    files_ = find_text_files(options_.inputs, options_.format);
    also_held_out_ =
        std::erase_if(files_, [&](const InputFile& file) { return held_out_places.contains(place(file)); });
    if (files_.empty()) {
      fail(ExitCode::kUsage, "{}: is named for validation too, so that nothing is left to train on",
           options_.inputs.front());
    }
    first_validation_file_ = std::ssize(files_);
    std::ranges::move(held_out, std::back_inserter(files_));
  }

  /// A Parquet file that cannot be read is an error before anything is written.
  void check_column(const InputFile& file) const {
    if (file.format == TextFormat::kParquet) ParquetTexts(file.path, options_.field, 0);
  }

  /// Everything that the bytes of the corpus depend on.
  json request() const {
    std::string listing;
    std::string content;
    for (const InputFile& file : files_) {
      listing += fmt::format("{} {}\n", file.path.string(), file.bytes);
      content += fmt::format("{:016x}", sampled_checksum(file));
    }
    return {{"tokenizer", digest_},
            {"input_files", fmt::format("{:016x}", fast_checksum(listing))},
            {"input_content", fmt::format("{:016x}", fast_checksum(content))},
            {"validation_files", static_cast<int64_t>(files_.size()) - first_validation_file_},
            {"format", options_.format},
            {"field", options_.field},
            {"shard_tokens", options_.shard_tokens},
            {"validation_fraction", options_.validation_fraction},
            {"most_bytes", options_.most_bytes}};
  }

  /// Throws when the directory holds what is no corpus.
  void check_output() const {
    std::error_code ignored;
    const fs::path& out = options_.out;
    if (!fs::exists(out, ignored) || fs::is_empty(out, ignored)) return;
    if (!fs::is_directory(out, ignored)) fail(ExitCode::kUsage, "{}: is a file; --out names a directory", out.string());
    for (const char* own : {kCorpusManifest, kProgressFile, ".lock"}) {
      if (fs::exists(out / own, ignored)) return;
    }
    fail(ExitCode::kUsage, "{}: holds files, but no corpus; choose another --out", out.string());
  }

  json complete_before() {
    const Manifest manifest = read_manifest(options_.out);
    check_same_request(manifest.rest.value("request", json::object()), "holds a corpus made with");
    clean_up();  // a killed process may not have
    return summary(manifest, true);
  }

  void clean_up() const {
    remove_partial_files(options_.out);
    std::error_code ignored;
    fs::remove(options_.out / kProgressFile, ignored);
  }

  void check_same_request(const json& before, const char* what) const {
    for (const auto& [key, value] : request_.items()) {
      const json was = before.value(key, json());
      const bool earlier_version = key == "input_content" && was.is_null();  // did not record it
      if (was == value || earlier_version) continue;
      if (key == "input_files" || key == "input_content" || key == "tokenizer") {
        fail(ExitCode::kUsage, "{}: {} {}; choose another --out, or remove it", options_.out.string(), what,
             key == "tokenizer" ? "another tokenizer" : "other input files, or they have changed since");
      }
      fail(ExitCode::kUsage, "{}: {} {} = {}, not {}; choose another --out, or remove it", options_.out.string(), what,
           key, shown(was), shown(value));
    }
  }

  /// Goes on from progress.json, if there is one.
  void restore() {
    const fs::path file = options_.out / kProgressFile;
    if (!fs::exists(file)) return;
    const json saved = read_json(file);
    try {
      if (saved.at("format") != kProgressFormat || saved.at("version") != kProgressVersion) {
        fail(ExitCode::kInput, "{}: is not of this version; remove {} and run again", file.string(),
             options_.out.string());
      }
      if (saved.at("tokens") == 0) return;  // nothing was written yet: start again, even with other options
      check_same_request(saved.at("request"), "holds an unfinished corpus made with");
      position_ = {saved.at("position").at(0), saved.at("position").at(1), saved.at("position").at(2)};
      if (position_.file < 0 || position_.file > std::ssize(files_) || position_.offset < 0 || position_.line < 0) {
        fail(ExitCode::kInput, "{}: is damaged; remove {} and run again", file.string(), options_.out.string());
      }
      documents_ = saved.at("documents");
      counts_ = {saved.at("empty"), saved.at("corrupt"), saved.at("examples")};
      training_.restore(saved.at("training"));
      validation_.restore(saved.at("validation"));
    } catch (const json::exception&) {
      fail(ExitCode::kInput, "{}: is damaged; remove {} and run again", file.string(), options_.out.string());
    }
  }

  /// Records everything up to `position_`, from which another process can go on.
  void save() {
    const json saved = {{"format", kProgressFormat},
                        {"version", kProgressVersion},
                        {"request", request_},
                        {"position", {position_.file, position_.offset, position_.line}},
                        {"documents", documents_},
                        {"tokens", training_.tokens() + validation_.tokens()},
                        {"empty", counts_.empty},
                        {"corrupt", counts_.corrupt},
                        {"examples", counts_.examples},
                        {"training", training_.save()},
                        {"validation", validation_.save()}};
    write_file_atomic(options_.out / kProgressFile, json_text(saved));
    saved_at_ = now_seconds();
  }

  /// Reads on one thread, parses and tokenizes on all, writes in order.
  void read_all() {
    BoundedQueue<Batch> queue(2);
    std::exception_ptr error;
    {
      std::jthread reader([&] {
        try {
          RecordReader records(files_, limits_, position_, options_.field);
          for (Batch batch; records.next(batch); batch = {}) {
            if (!queue.push(std::move(batch))) return;
          }
        } catch (...) {
          error = std::current_exception();
        }
        queue.close();
      });
      const auto close = [](BoundedQueue<Batch>* open) { open->close(); };
      const std::unique_ptr<BoundedQueue<Batch>, decltype(close)> closed_at_exit(&queue, close);  // frees the reader
      while (std::optional<Batch> batch = queue.pop()) process(*batch);
    }
    if (error) std::rethrow_exception(error);
    save();
  }

  void process(Batch& batch) {
    for_each_in_parallel(batch.records.size(), threads_, [&](size_t i) {
      if (batch.records[i].kind == Record::Kind::kLine) take_field(batch.records[i], options_.field);
    });
    std::vector<std::string_view> pieces;
    std::vector<size_t> ends;  // of the pieces of each record
    for (const Record& record : batch.records) {
      for (std::string_view rest = record.text; !rest.empty();) {
        const size_t length = cut_text(rest, true, limits_);
        pieces.push_back(rest.substr(0, length));
        rest.remove_prefix(length);
      }
      ends.push_back(pieces.size());
    }
    const std::vector<std::vector<int64_t>> tokens = tokenizer_.encode_batch(pieces, threads_);
    size_t piece = 0;
    for (size_t i = 0; i < batch.records.size(); ++i) {
      write(batch.records[i], std::span(tokens).subspan(piece, ends[i] - piece));
      piece = ends[i];
    }
    position_ = batch.end;
    if (now_seconds() - saved_at_ >= options_.save_seconds) save();
    if (progress_) {
      progress_({batch.raw_bytes, total_bytes_, training_.tokens() + validation_.tokens(),
                 training_.documents() + validation_.documents()});
    }
  }

  void write(const Record& record, std::span<const std::vector<int64_t>> pieces) {
    if (record.kind == Record::Kind::kEmpty) {
      ++counts_.empty;
    } else if (record.kind == Record::Kind::kCorrupt) {
      count_corrupt(record);
    } else {
      const bool own_file = record.file >= first_validation_file_;
      SplitWriter& writer = own_file || is_held_out(documents_) ? validation_ : training_;
      for (const std::vector<int64_t>& tokens : pieces) writer.append(tokens);
      if (!record.ends_document) return;
      if (const int64_t end = tokenizer_.end_of_text(); end >= 0) writer.append({&end, 1});
      writer.end_document();
      if (!own_file) ++documents_;
    }
  }

  /// The documents floor(k / fraction) of the inputs, for k = 1, 2, ..., are held out.
  bool is_held_out(int64_t document) const {
    const double fraction = options_.validation_fraction, before = static_cast<double>(document);
    return std::floor((before + 1) * fraction) > std::floor(before * fraction);
  }

  void count_corrupt(const Record& record) {
    const std::string name = files_[record.file].path.string();
    const std::string text =
        fmt::format("{}{}: {}", name, record.line > 0 ? fmt::format(":{}", record.line) : "", record.problem);
    if (!options_.skip_corrupt) {
      fail(ExitCode::kInput, "{}; repair it, or leave such records out with --on-error skip", text);
    }
    ++counts_.corrupt;
    if (counts_.examples.size() < kMostExamples) counts_.examples.push_back(one_line(text));
  }

  [[noreturn]] void fail_without_documents() const {
    std::string why =
        fmt::format("no text to train on; input files: {}, documents without text: {}, corrupt records: {}",
                    files_.size(), counts_.empty, counts_.corrupt);
    if (counts_.corrupt > 0) why += ", the first: " + counts_.examples.front().get<std::string>();
    fail(ExitCode::kInput, "{}: {}", options_.out.string(), why);
  }

  Manifest manifest() const {
    Manifest manifest{digest_, tokenizer_.name(), tokenizer_.vocab_size(), training_.split(), validation_.split()};
    manifest.rest = {
        {"request", request_},
        {"inputs", options_.inputs},
        {"validation_inputs", options_.validation},
        {"files", files_.size()},
        {"bytes", total_bytes_},
        {"records", {{"empty", counts_.empty}, {"corrupt", counts_.corrupt}, {"examples", counts_.examples}}}};
    return manifest;
  }

  json summary(const Manifest& manifest, bool complete_before) const {
    const auto counts = [](const CorpusSplit& split) {
      return json{{"documents", split.documents()}, {"tokens", split.tokens()}, {"shards", split.shards.size()}};
    };
    return {{"corpus", options_.out.string()},
            {"training", counts(manifest.training)},
            {"validation", counts(manifest.validation)},
            {"records", manifest.rest.value("records", json::object())},
            {"files", manifest.rest.value("files", json())},
            {"bytes", manifest.rest.value("bytes", json())},
            {"also_held_out", also_held_out_},
            {"complete_before", complete_before},
            {"seconds", 0.0}};
  }

  const PrepareOptions& options_;
  const text::Tokenizer& tokenizer_;
  const std::function<void(const PrepareProgress&)>& progress_;
  const int64_t threads_;
  const std::string digest_;
  SplitWriter training_, validation_;
  std::vector<InputFile> files_;  // of `inputs`, then of `validation`
  int64_t first_validation_file_ = 0;
  size_t also_held_out_ = 0;  // files that `inputs` name too
  int64_t total_bytes_ = 0;
  RecordLimits limits_;
  json request_;
  RecordPosition position_;  // everything before is written
  int64_t documents_ = 0;    // of `inputs`, complete
  RecordCounts counts_;
  double saved_at_ = 0;
};

}  // namespace

json prepare(const PrepareOptions& options, const text::Tokenizer& tokenizer,
             const std::function<void(const PrepareProgress&)>& progress) {
  return Preparation(options, tokenizer, progress).run();
}

}  // namespace tamis::data
