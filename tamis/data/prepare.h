#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tamis/text/tokenizer.h"

namespace tamis::data {

struct PrepareOptions {
  std::vector<std::string> inputs;      // files, folders and patterns; see find_text_files
  std::vector<std::string> validation;  // the same, held out for validation, also where `inputs` name them too
  std::filesystem::path out;            // the corpus
  std::string format = "auto";          // "text", "jsonl", "parquet", or "auto": by the names of the files
  std::string field = "text";           // of a JSONL record
  int64_t shard_tokens = 100'000'000;   // a shard ends with the document that reaches this
  double validation_fraction = 0;       // of the documents of `inputs`, evenly spaced, held out; 0: none
  int64_t most_bytes = 16 << 20;        // of a JSONL record
  bool skip_corrupt = true;             // count corrupt records and go on; false: the first one is an error
  int64_t threads = 0;                  // 0: one for every core
  double save_seconds = 5;              // between the points that a killed process goes on from
};

/// How far prepare() is.
struct PrepareProgress {
  int64_t bytes = 0, total_bytes = 0;  // of the input files
  int64_t tokens = 0, documents = 0;
};

/// Tokenizes files into a prepared corpus (corpus.h). Text files and the text fields of JSONL records are documents; an
/// end-of-text token follows each of them. The bytes of the corpus depend on the input and the options, not on the
/// number of threads or on interruptions: called again after the process was killed, it goes on where it was.
///
/// Memory does not depend on the input, apart from standard input, which it holds: some 100 MB, and about 20 times the
/// largest document of JSONL, at most `most_bytes`. Corrupt records (no JSON, no such field, a value that is no text,
/// too long, damaged or not UTF-8) are counted and left out. Returns counts for --json: corpus, training and validation
/// (documents, tokens, shards), records, also_held_out (files that inputs and validation name), seconds,
/// complete_before (the corpus was there already).
///
/// Throws ExitCode::kInput when an input cannot be read or there is no document at all, ExitCode::kUsage when `out`
/// holds something else, such as a corpus made with other options, ExitCode::kRuntime when another process prepares
/// it, and ExitCode::kStorage.
nlohmann::json prepare(const PrepareOptions& options, const text::Tokenizer& tokenizer,
                       const std::function<void(const PrepareProgress&)>& progress = {});

}  // namespace tamis::data
