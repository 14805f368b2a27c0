#include "tamis/base/files.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tamis/base/error.h"
#include "tamis/base/memory.h"
#include "tamis/base/output_file.h"
#include "tamis/base/storage_error.h"

namespace tamis {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_input(const fs::path& path, const char* what) {
  fail(ExitCode::kInput, "{}: {}: {}", path.string(), what, std::strerror(errno));
}

fs::path unfinished_name(const fs::path& path) {
  return path.parent_path() /
         (std::string(kUnfinishedPrefix) + path.filename().string() + "-" + std::to_string(getpid()));
}

void sync_path(const fs::path& path, int flags) {
  const int descriptor = open(path.c_str(), flags | O_CLOEXEC);
  if (descriptor < 0) fail_storage(path, "cannot open to sync");
  if (fsync(descriptor) != 0) {
    const int error = errno;
    close(descriptor);
    errno = error;
    fail_storage(path, "cannot sync");
  }
  close(descriptor);
}

void sync_directory(const fs::path& path) {
  sync_path(path.empty() ? fs::path(".") : path, O_RDONLY | O_DIRECTORY);
}

void sync_tree(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.is_directory()) {
      sync_tree(entry.path());
    } else {
      sync_path(entry.path(), O_RDONLY);
    }
  }
  sync_directory(directory);
}

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a directory";
  if (S_ISFIFO(mode)) return "a pipe";
  return S_ISSOCK(mode) ? "a socket" : "a device";
}

/// Opens a regular file for reading. O_NONBLOCK: opening a pipe returns at once instead of waiting for a writer.
int open_to_read(const fs::path& path, struct stat* status) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (descriptor < 0) fail_input(path, "cannot open");
  if (fstat(descriptor, status) != 0 || !S_ISREG(status->st_mode)) {
    close(descriptor);
    fail(ExitCode::kInput, "{}: expected a file, but it is {}", path.string(), kind_of(status->st_mode));
  }
  return descriptor;
}

}  // namespace

std::string read_file(const fs::path& path) {
  struct stat status {};
  const int descriptor = open_to_read(path, &status);
  std::string bytes;
  try {
    if (status.st_size > kWorthAsking) {
      require_memory(static_cast<double>(status.st_size), path.string(), "use a smaller file");
    }
    bytes.resize(static_cast<size_t>(status.st_size));
  } catch (...) {
    close(descriptor);
    throw;
  }
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(descriptor, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  close(descriptor);
  if (done != bytes.size()) fail(ExitCode::kInput, "{}: read {} of {} bytes", path.string(), done, bytes.size());
  return bytes;
}

FileWriter::FileWriter(fs::path path, Mode mode) : path_(std::move(path)) {
  const int how = mode == Mode::kAppend ? O_APPEND : O_TRUNC;
  if (const auto descriptor = descriptor_behind(path_)) {
    descriptor_ = fcntl(*descriptor, F_DUPFD_CLOEXEC, 0);
  } else {
    // O_NONBLOCK: opening a pipe that nothing reads fails at once instead of waiting for a reader.
    descriptor_ = open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | how, 0644);
    struct stat status {};
    if (descriptor_ < 0 && errno == ENXIO && stat(path_.c_str(), &status) == 0 && S_ISFIFO(status.st_mode)) {
      fail(ExitCode::kStorage, "{}: cannot write to a pipe that nothing reads; start its reader first, or remove it",
           path_.string());
    }
    if (descriptor_ >= 0) fcntl(descriptor_, F_SETFL, fcntl(descriptor_, F_GETFL) & ~O_NONBLOCK);
  }
  if (descriptor_ < 0) fail_storage(path_, "cannot write");
}

FileWriter::~FileWriter() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

void FileWriter::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(descriptor_, bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) fail_storage(path_, "cannot write");
    bytes.remove_prefix(static_cast<size_t>(put));
  }
}

void FileWriter::sync() {
  // EINVAL, ENOTSUP: a pipe or a device, which has nothing to sync.
  if (fsync(descriptor_) != 0 && errno != EINVAL && errno != ENOTSUP) fail_storage(path_, "cannot sync");
}

void FileWriter::close() {
  sync();
  const int descriptor = std::exchange(descriptor_, -1);
  if (::close(descriptor) != 0) fail_storage(path_, "cannot close");
}

void write_file(const fs::path& path, std::string_view bytes) {
  FileWriter file(path);
  file.write(bytes);
  file.close();
}

void write_file_atomic(const fs::path& path, std::string_view bytes) {
  write_file_atomic(path, [&](FileWriter& file) { file.write(bytes); });
}

void write_file_atomic(const fs::path& path, const std::function<void(FileWriter&)>& fill) {
  const auto replaced = file_to_replace(path);
  if (!replaced) {
    FileWriter file(path);
    fill(file);
    return file.close();
  }
  const fs::path temporary = unfinished_name(*replaced);
  try {
    FileWriter file(temporary);
    fill(file);
    file.close();
    if (rename(temporary.c_str(), replaced->c_str()) != 0) fail_storage(path, "cannot rename into place");
  } catch (...) {
    std::error_code ignored;
    fs::remove(temporary, ignored);
    throw;
  }
  sync_directory(replaced->parent_path());
}

void write_directory_atomic(const fs::path& path, const std::function<void(const fs::path&)>& fill) {
  const fs::path temporary = unfinished_name(path);
  std::error_code ignored;
  try {
    fs::remove_all(temporary, ignored);
    if (mkdir(temporary.c_str(), 0777) != 0) fail_storage(path, "cannot create the directory");
    fill(temporary);
    sync_tree(temporary);
    if (fs::exists(path)) {
      // rename(2) cannot replace a directory that is not empty, so the old one is renamed first.
      const fs::path old = unfinished_name(path.string() + ".old");
      fs::remove_all(old, ignored);
      if (rename(path.c_str(), old.c_str()) != 0) fail_storage(path, "cannot rename aside");
      if (rename(temporary.c_str(), path.c_str()) != 0) fail_storage(path, "cannot rename into place");
      fs::remove_all(old, ignored);
    } else if (rename(temporary.c_str(), path.c_str()) != 0) {
      fail_storage(path, "cannot rename into place");
    }
  } catch (const fs::filesystem_error& error) {
    fs::remove_all(temporary, ignored);
    errno = error.code().value();
    fail_storage(path, "cannot write");
  } catch (...) {
    fs::remove_all(temporary, ignored);
    throw;
  }
  sync_directory(path.parent_path());
}

void remove_directory(const fs::path& path) {
  const fs::path leaving = unfinished_name(path);
  std::error_code error;
  fs::remove_all(leaving, error);
  if (rename(path.c_str(), leaving.c_str()) != 0) fail_storage(path, "cannot remove");
  fs::remove_all(leaving, error);
  if (error) {
    errno = error.value();
    fail_storage(leaving, "cannot remove");
  }
}

void remove_unfinished_writes(const fs::path& directory) {
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(directory, ignored)) {
    if (entry.path().filename().string().starts_with(kUnfinishedPrefix)) fs::remove_all(entry.path(), ignored);
  }
}

void make_directories(const fs::path& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) {
    errno = error.value();
    fail_storage(path, "cannot create the directory");
  }
}

MappedFile::MappedFile(const fs::path& path) {
  struct stat status {};
  const int descriptor = open_to_read(path, &status);
  size_ = static_cast<size_t>(status.st_size);
  if (size_ > 0) {
    void* address = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, descriptor, 0);
    if (address == MAP_FAILED) {
      const int error = errno;
      close(descriptor);
      errno = error;
      fail_input(path, "cannot map into memory");
    }
    data_ = static_cast<const std::byte*>(address);
  }
  close(descriptor);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

FileLock::FileLock(const fs::path& path) {
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor_ < 0) fail_storage(path, "cannot create the lock file");
  if (flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
    char holder[32] = {};
    const ssize_t got = read(descriptor_, holder, sizeof(holder) - 1);
    close(descriptor_);
    fail(ExitCode::kRuntime, "{}: in use by another process{}; wait for it, or stop it", path.parent_path().string(),
         got > 0 ? " (" + std::string(holder) + ")" : "");
  }
  const std::string self = "process " + std::to_string(getpid());
  if (ftruncate(descriptor_, 0) != 0 || pwrite(descriptor_, self.data(), self.size(), 0) < 0) {
    // The process id only serves the message above; a full disk must not prevent locking.
  }
}

FileLock::~FileLock() {
  if (descriptor_ >= 0) close(descriptor_);
}

uint64_t checksum(std::string_view bytes) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash;
}

fs::path program_directory() {
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  return error ? fs::path(".") : program.parent_path();
}

}  // namespace tamis
