#pragma once

#include <cstdio>
#include <string_view>

namespace tamis {

/// Writes a message for the user to `stream`. A message that cannot be written (full disk, closed descriptor) is lost
/// without an error: the work goes on.
void print_message(std::FILE* stream, std::string_view text);

/// Writes out what standard output still holds. Throws ExitCode::kRuntime when that, or anything before, could not be
/// written.
void flush_output();

}  // namespace tamis
