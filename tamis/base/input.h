#pragma once

#include <filesystem>
#include <string>

namespace tamis {

/// The bytes of a text that a command was given: of the file, or of standard input for "-". Throws ExitCode::kInput
/// when they cannot be read, ExitCode::kRuntime when memory does not hold them.
std::string read_input(const std::filesystem::path& file);

/// What messages call it: the file, or "standard input".
std::string input_name(const std::filesystem::path& file);

}  // namespace tamis
