#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tamis::data {

enum class TextFormat {
  kText,   // one document
  kJsonl,  // one document on each line, in a field of a JSON object
  kParquet,
};

enum class Compression { kNone, kGzip, kZstd };

struct InputFile {
  std::filesystem::path path;
  TextFormat format;
  Compression compression;
  int64_t bytes;  // on disk
};

/// The files that `arguments` name, in their order: files, folders (all files below them whose names end in .txt, .md,
/// .text, .jsonl, .ndjson or .parquet, also with .gz or .zst behind; hidden ones are left out) and patterns as for a
/// shell (`data/*.txt`). The files of a folder or pattern come in the order of their names. The format follows from the
/// name unless `format` is "text" or "jsonl" instead of "auto"; other names are text.
///
/// Throws ExitCode::kInput when an argument names nothing, or something that is no regular file.
std::vector<InputFile> find_input_files(const std::vector<std::string>& arguments, const std::string& format);

}  // namespace tamis::data
