#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace tamis {

/// The whole file as bytes. Throws ExitCode::kInput when it cannot be read or is not a regular file (a pipe is refused
/// at once, whether or not somebody writes into it).
std::string read_file(const std::filesystem::path& path);

/// Replaces `path` by `bytes` so that a reader, or a power cut, sees the old file or the new one, never a part:
/// temporary name in the same directory, fsync, rename, fsync of the directory. Throws ExitCode::kStorage.
void write_file_atomic(const std::filesystem::path& path, std::string_view bytes);

class FileWriter;
/// The same for a file that is made piece by piece by `fill`. When `fill` throws, `path` stays as it was.
void write_file_atomic(const std::filesystem::path& path, const std::function<void(FileWriter&)>& fill);

/// Writes a new directory all at once: `fill` gets a temporary directory beside `path` to write into; then every file
/// is fsynced and the directory renamed to `path`. An existing `path` is replaced. When `fill` throws, nothing is left.
void write_directory_atomic(const std::filesystem::path& path,
                            const std::function<void(const std::filesystem::path&)>& fill);

/// Removes a directory and all in it; a kill on the way leaves no part of it under its name. Throws ExitCode::kStorage.
void remove_directory(const std::filesystem::path& path);

/// Removes what a killed write_file_atomic, write_directory_atomic or remove_directory left in `directory`.
void remove_unfinished_writes(const std::filesystem::path& directory);

/// Creates the directory and its parents. Throws ExitCode::kStorage.
void make_directories(const std::filesystem::path& path);

/// A file being written piece by piece; every failure throws ExitCode::kStorage with the path and the reason.
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

/// Holds an exclusive lock on `path` (created when missing) for its lifetime; the kernel drops it when the process
/// dies. Throws ExitCode::kRuntime with the holder's process id when another process has it.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& path);
  ~FileLock();
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int descriptor_ = -1;
};

/// 64-bit FNV-1a of `bytes`: seeds of sources, and whether a text is the one that a run began with. Files of
/// checkpoints have models::sha256.
uint64_t checksum(std::string_view bytes);

/// The program's own directory, to find what is installed or built beside it.
std::filesystem::path program_directory();

}  // namespace tamis
