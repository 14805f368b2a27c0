#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace tamis {

/// The bytes of the whole file. Throws ExitCode::kInput when it cannot be read or is not a regular file; opening a pipe
/// fails at once and never waits for a writer. Throws ExitCode::kRuntime when it does not fit into memory.
std::string read_file(const std::filesystem::path& path);

/// Replaces the content of `path` by `bytes` atomically: readers see the complete old or the complete new file, also
/// after a power failure. Writes to a temporary name in the same directory, calls fsync, renames, and calls fsync on
/// the directory. Throws ExitCode::kStorage.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

/// Creates or replaces a file and fsyncs it; not atomically: for directories that appear as a whole. Throws
/// ExitCode::kStorage.
void write_file(const std::filesystem::path& path, std::string_view bytes);

class FileWriter;
/// The same for a file that `fill` writes in pieces. When `fill` throws, `path` is unchanged.
void write_file_atomic(const std::filesystem::path& path, const std::function<void(FileWriter&)>& fill);

/// Creates or replaces a directory: `fill` writes into a temporary directory next to `path`; every file is then fsynced
/// and the directory renamed to `path`. When `fill` throws, the temporary directory is removed and `path` is unchanged.
void write_directory_atomic(const std::filesystem::path& path,
                            const std::function<void(const std::filesystem::path&)>& fill);

/// Removes a directory and its contents. It is renamed first, so that a killed process leaves no partial directory
/// under its name. Throws ExitCode::kStorage.
void remove_directory(const std::filesystem::path& path);

/// Files and directories whose names begin with this are unfinished writes.
inline constexpr std::string_view kUnfinishedPrefix = ".unfinished-";

/// Removes the temporary files that a killed write_file_atomic, write_directory_atomic or remove_directory left in
/// `directory`.
void remove_unfinished_writes(const std::filesystem::path& directory);

/// Creates the directory and its parents. Throws ExitCode::kStorage.
void make_directories(const std::filesystem::path& path);

/// A file that is written in pieces. A pipe must have a reader already. Every failure throws ExitCode::kStorage with
/// the path and the reason.
class FileWriter {
 public:
  enum class Mode { kTruncate, kAppend };
  explicit FileWriter(std::filesystem::path path, Mode mode = Mode::kTruncate);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::string_view bytes);
  void sync();   // fsync
  void close();  // fsync and close; the destructor only closes

 private:
  std::filesystem::path path_;
  int descriptor_ = -1;
};

/// A file mapped read-only into memory. Throws ExitCode::kInput.
class MappedFile {
 public:
  explicit MappedFile(const std::filesystem::path& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

/// Holds an exclusive lock on `path` (created when missing) for its lifetime; the kernel releases it when the process
/// ends. Throws ExitCode::kRuntime with the holder's process id when another process holds it.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// 64-bit FNV-1a hash of `bytes`: seeds the data sources and detects a changed training text. The files of a checkpoint
/// are verified by sha256 (digest.h) instead.
uint64_t checksum(std::string_view bytes);

/// The directory of the running program, to find files installed or built next to it.
std::filesystem::path program_directory();

}  // namespace tamis
