#pragma once

#include <filesystem>
#include <optional>

namespace tamis {

/// The regular file or unused name that an atomic write to `path` replaces: the target of a symbolic link, else `path`.
/// None when the bytes must be written to `path` directly: a character device, a FIFO, a descriptor of this process.
/// Throws ExitCode::kStorage for anything else, such as a directory.
std::optional<std::filesystem::path> file_to_replace(const std::filesystem::path& path);

/// N when `path` leads to /proc/self/fd/N, as /dev/stdout and /dev/fd/N do. Such a descriptor must be duplicated:
/// opening the file again would write from its first byte.
std::optional<int> descriptor_behind(const std::filesystem::path& path);

/// Throws ExitCode::kStorage when write_file_atomic(path) cannot succeed. Call it before the work whose result goes
/// to `path`.
void check_output_file(const std::filesystem::path& path);

}  // namespace tamis
