#pragma once

#include <filesystem>

namespace tamis {

/// Throws ExitCode::kStorage with the text of errno and advice: `PATH: cannot write: No space left on device; free some
/// space and run again`.
[[noreturn]] void fail_storage(const std::filesystem::path& path, const char* what);

}  // namespace tamis
