#pragma once

#include <string>

namespace tamis::commands {

/// The bytes of a file, or of standard input for "-". Throws ExitCode::kInput.
std::string read_text(const std::string& file);

}  // namespace tamis::commands
