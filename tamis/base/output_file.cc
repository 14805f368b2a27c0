#include "tamis/base/output_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <string>

#include "tamis/base/error.h"
#include "tamis/base/storage_error.h"

namespace tamis {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse_output(const fs::path& path, const char* what) {
  fail(ExitCode::kStorage, "{}: expected the name of a file to write, but it is {}; choose another name", path.string(),
       what);
}

/// The file type of `path` as in <sys/stat.h>; 0 when it does not exist. Throws for types that cannot be written.
mode_t check_kind(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT && path.has_filename()) return 0;
    fail_storage(path, "cannot write");
  }
  const mode_t kind = status.st_mode & S_IFMT;
  if (kind == S_IFDIR) refuse_output(path, "a directory");
  if (kind == S_IFSOCK) refuse_output(path, "a socket");
  if (kind == S_IFBLK) refuse_output(path, "a block device");
  return kind;
}

/// N of /proc/self/fd/N.
std::optional<int> descriptor_named(const fs::path& path) {
  const std::string name = path.filename().string();
  int descriptor = -1;
  const auto [end, wrong] = std::from_chars(name.data(), name.data() + name.size(), descriptor);
  if (wrong != std::errc() || end != name.data() + name.size()) return std::nullopt;
  std::error_code error;
  return fs::equivalent(path.parent_path(), "/proc/self/fd", error) ? std::optional(descriptor) : std::nullopt;
}

/// Follows the symbolic links at `path`; the target need not exist. Links in /proc/self/fd are not followed.
fs::path target_of(fs::path path) {
  constexpr int kMostLinks = 40;
  std::error_code error;
  for (int links = 0; links < kMostLinks && !descriptor_named(path) && fs::is_symlink(path, error); ++links) {
    const fs::path next = fs::read_symlink(path, error);
    if (error) break;
    path = path.parent_path() / next;
  }
  return path;
}

}  // namespace

std::optional<int> descriptor_behind(const fs::path& path) {
  return descriptor_named(target_of(path));
}

std::optional<fs::path> file_to_replace(const fs::path& path) {
  if (descriptor_behind(path)) return std::nullopt;
  const mode_t kind = check_kind(path);
  if (kind != 0 && kind != S_IFREG) return std::nullopt;
  return target_of(path);
}

void check_output_file(const fs::path& path) {
  const auto replaced = file_to_replace(path);
  if (!replaced) return;
  const fs::path directory = replaced->parent_path();
  if (access(directory.empty() ? "." : directory.c_str(), W_OK | X_OK) != 0) fail_storage(path, "cannot write");
}

}  // namespace tamis
