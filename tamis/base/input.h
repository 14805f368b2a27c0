#pragma once

#include <filesystem>
#include <string>

namespace tamis {

/// The bytes of `file`, or of standard input for "-". Throws ExitCode::kInput when they cannot be read,
/// ExitCode::kRuntime when they do not fit into memory.
std::string read_input(const std::filesystem::path& file);

/// Its name for messages: the file, or "standard input".
std::string input_name(const std::filesystem::path& file);

}  // namespace tamis
