#pragma once

#include <filesystem>
#include <optional>

namespace tamis {

/// The regular file, or the free name, that an atomic write to `path` replaces: its target when it is a symbolic link.
/// None when nothing must be replaced and the bytes go to `path` itself: a character device, a FIFO, a descriptor of
/// this process. Throws ExitCode::kStorage for anything else, such as a directory.
std::optional<std::filesystem::path> file_to_replace(const std::filesystem::path& path);

/// N when `path` leads to /proc/self/fd/N, as /dev/stdout and /dev/fd/N do. Opening such a file anew would begin at its
/// first byte.
std::optional<int> descriptor_behind(const std::filesystem::path& path);

/// Throws ExitCode::kStorage when write_file_atomic(path) cannot succeed: to be called before the work whose result
/// goes there.
void check_output_file(const std::filesystem::path& path);

}  // namespace tamis
