#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace tamis::data {

enum class TextFormat {
  kText,     // one document
  kJsonl,    // one document on each line, in a field of a JSON object
  kParquet,  // one document in each row, in a column
};

enum class Compression { kNone, kGzip, kZstd };

struct InputFile {
  std::filesystem::path path;
  TextFormat format;
  Compression compression;
  int64_t bytes;                                         // on disk, or of content
  std::shared_ptr<const std::string> content = nullptr;  // of standard input, which cannot be opened at `path`
};

/// The files that `arguments` name, in their order: files, folders (all files below them whose names end in .txt, .md,
/// .text, .jsonl, .ndjson or .parquet, also with .gz or .zst behind; hidden ones are left out) and patterns as for a
/// shell (`data/*.txt`). The files of a folder or pattern come in the order of their names. The format follows from the
/// name, in upper or lower case, unless `format` is "text", "jsonl" or "parquet" instead of "auto": .jsonl, .ndjson and
/// .json are JSONL, .parquet is Parquet, other names are text.
///
/// Throws ExitCode::kInput when an argument names nothing, something that is no regular file, or a compressed Parquet
/// file; ExitCode::kUsage when it is empty.
std::vector<InputFile> find_input_files(const std::vector<std::string>& arguments, const std::string& format);

/// The extension in lower case, of `a.JSONL.gz` `.jsonl`.
std::string content_extension(const std::filesystem::path& file);

/// A checksum that shows most changes of a file that keep its size: of all of it up to 1 MiB and of standard input,
/// else of 64 blocks of 16 KiB that are spaced evenly, the first and the last bytes included. Throws ExitCode::kInput
/// when it cannot be read.
uint64_t sampled_checksum(const InputFile& file);

}  // namespace tamis::data
