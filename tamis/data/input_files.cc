#include "tamis/data/input_files.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <string_view>

#include "tamis/base/error.h"
#include "tamis/base/names.h"
#include "tamis/data/shard.h"

namespace tamis::data {
namespace {

namespace fs = std::filesystem;

std::string lower_extension(const fs::path& file) {
  std::string extension = file.extension().string();
  std::ranges::transform(extension, extension.begin(),
                         [](char c) { return 'A' <= c && c <= 'Z' ? c + ('a' - 'A') : c; });
  return extension;
}

Compression compression_of(const fs::path& file) {
  const std::string extension = lower_extension(file);
  return extension == ".gz" ? Compression::kGzip : extension == ".zst" ? Compression::kZstd : Compression::kNone;
}

bool is_jsonl(std::string_view extension) {
  return extension == ".jsonl" || extension == ".ndjson";
}

bool is_data(const fs::path& file) {
  static constexpr std::array<std::string_view, 4> kTexts = {".txt", ".md", ".text", ".parquet"};
  const std::string extension = content_extension(file);
  return is_jsonl(extension) || std::find(kTexts.begin(), kTexts.end(), extension) != kTexts.end();
}

class Finder {
 public:
  explicit Finder(const std::string& format) : format_(format) {}

  void add(const std::string& argument) {
    std::error_code ignored;
    if (argument.empty())
      fail(ExitCode::kUsage, "expected the name of a file or folder, or a pattern, but it is empty");
    if (fs::is_directory(argument, ignored)) return add_folder(argument);
    if (fs::exists(fs::symlink_status(argument, ignored))) return add_file(argument);
    if (argument.find_first_of("*?[") == std::string::npos) {
      fail(ExitCode::kInput, "{}: does not exist", one_line(argument));
    }
    add_pattern(argument);
  }

  std::vector<InputFile> take() { return std::move(files_); }

 private:
  void add_file(const fs::path& file) {
    std::error_code error;
    const fs::file_status status = fs::status(file, error);
    if (!fs::is_regular_file(status)) {
      fail(ExitCode::kInput, "{}: expected a file, a folder or a pattern, but it is {}", file.string(),
           fs::exists(status) ? "neither" : "a link to nothing");
    }
    const std::string extension = content_extension(file);
    const TextFormat format = format_of(extension);
    if (format == TextFormat::kParquet && compression_of(file) != Compression::kNone) {
      fail(ExitCode::kInput, "{}: decompress it first; Parquet is compressed inside", file.string());
    }
    const auto bytes = static_cast<int64_t>(fs::file_size(file, error));
    if (error) fail(ExitCode::kInput, "{}: {}", file.string(), error.message());
    files_.push_back({file, format, compression_of(file), bytes});
  }

  TextFormat format_of(const std::string& extension) const {
    if (format_ != "auto") {
      return format_ == "jsonl" ? TextFormat::kJsonl : format_ == "parquet" ? TextFormat::kParquet : TextFormat::kText;
    }
    return is_jsonl(extension) || extension == ".json" ? TextFormat::kJsonl
           : extension == ".parquet"                   ? TextFormat::kParquet
                                                       : TextFormat::kText;
  }

  void add_sorted(std::vector<fs::path> found) {
    std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.native() < b.native(); });
    for (const fs::path& file : found) add_file(file);
  }

  void add_folder(const fs::path& folder) {
    std::vector<fs::path> found;
    std::error_code error;
    for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      const bool hidden = entry->path().filename().native().starts_with('.');
      if (hidden && entry->is_directory()) entry.disable_recursion_pending();
      std::error_code ignored;
      if (!hidden && is_data(entry->path()) && entry->is_regular_file(ignored)) found.push_back(entry->path());
    }
    if (error) fail(ExitCode::kInput, "{}: {}", folder.string(), error.message());
    if (found.empty()) {
      fail(ExitCode::kInput,
           "{}: holds no file whose name ends in .txt, .md, .text, .jsonl, .ndjson or .parquet (or these with .gz or "
           ".zst behind); name other files themselves, such as '{}/*'",
           folder.string(), folder.string());
    }
    add_sorted(std::move(found));
  }

  void add_pattern(const std::string& pattern) {
    glob_t found = {};
    const int result = glob(pattern.c_str(), 0, nullptr, &found);
    std::vector<fs::path> paths(found.gl_pathv, found.gl_pathv + (result == 0 ? found.gl_pathc : 0));
    globfree(&found);
    std::erase_if(paths, [](const fs::path& path) { return fs::is_directory(path); });
    if (paths.empty()) fail(ExitCode::kInput, "{}: no file has a name like this", one_line(pattern));
    add_sorted(std::move(paths));
  }

  const std::string& format_;
  std::vector<InputFile> files_;
};

}  // namespace

std::vector<InputFile> find_input_files(const std::vector<std::string>& arguments, const std::string& format) {
  Finder finder(format);
  for (const std::string& argument : arguments) finder.add(argument);
  return finder.take();
}

std::string content_extension(const fs::path& file) {
  return lower_extension(compression_of(file) == Compression::kNone ? file : file.stem());
}

uint64_t sampled_checksum(const InputFile& file) {
  constexpr int64_t kBlocks = 64, kBlockBytes = 16 << 10;
  if (file.content) return fast_checksum(*file.content);
  const bool whole = file.bytes <= kBlocks * kBlockBytes;
  const int64_t blocks = whole ? 1 : kBlocks, bytes = whole ? file.bytes : kBlockBytes;
  std::ifstream in(file.path, std::ios::binary);
  std::string sample(static_cast<size_t>(blocks * bytes), '\0');
  for (int64_t block = 0; block < blocks; ++block) {
    const bool last = block == blocks - 1;
    in.seekg(last ? file.bytes - bytes : (file.bytes - bytes) / blocks * block);
    in.read(sample.data() + block * bytes, bytes);
  }
  if (!in) fail(ExitCode::kInput, "{}: cannot be read to its end", file.path.string());
  return fast_checksum(sample);
}

}  // namespace tamis::data
